"""End-to-end samples/s of one network in satrap and in plain PyTorch, in one run. See README.md here."""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import satrap  # isort: skip  # before torch, like satrap's programs: see satrap.runtime.threads
import torch

from benchmarks.record import write
from benchmarks.train_vs_pytorch.plain import SPARSE_OPTIMIZERS, Bags, Plain
from benchmarks.train_vs_pytorch.workload import Samples, cardinalities, generate, schema

RESULTS = Path(__file__).parent / "results"
OPTIMIZERS = {
    "adagrad": satrap.optim.Adagrad,
    "sgd": satrap.optim.SGD,
    "adam": satrap.optim.Adam,
    "rowwise_adagrad": satrap.optim.RowWiseAdagrad,
}
EMBEDDING_LR = 0.01


def network(name: str, described: satrap.Schema) -> torch.nn.Module:
    """Return "dlrm", with its defaults, or "tiny": one hidden layer of 8; rows then take most of the time."""
    torch.manual_seed(1)
    if name == "tiny":
        return satrap.models.DNN(described, hidden=[8])
    return satrap.models.DLRM(described)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.train_vs_pytorch", description=__doc__)
    parser.add_argument("--model", choices=["dlrm", "tiny"], default="dlrm")
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows of all tables together")
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=60, help="steps of one measurement")
    parser.add_argument("--repeats", type=int, default=7, help="measurements of each side, interleaved")
    parser.add_argument("--optimizer", choices=list(OPTIMIZERS), default="adagrad", help="satrap's")
    parser.add_argument("--plain-optimizer", choices=list(SPARSE_OPTIMIZERS), default=None)
    parser.add_argument("--mode", choices=["sync", "hybrid"], default="hybrid")
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32", help="satrap's")
    parser.add_argument("--device", default="cpu", help="of the networks and of PyTorch's tables")
    parser.add_argument("--rows-on", default="cpu", help="device of satrap's rows")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of the plain sides")
    parser.add_argument("--satrap-threads", type=int, default=None, help="default: the trainer's choice")
    return parser.parse_args()


def satrap_side(options: argparse.Namespace) -> Callable[[Samples], object]:
    """Return a function that trains satrap's trainer on samples, reading columns through `satrap.data`."""
    described = schema(options.dim)
    trainer = satrap.Trainer(
        network(options.model, described),
        described,
        embedding_optimizer=OPTIMIZERS[options.optimizer](lr=EMBEDDING_LR),
        dense_optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
        mode=options.mode,
        staleness=4 if options.mode == "hybrid" else 0,
        training=satrap.train.TrainingOptions(precision=options.precision),
        device=options.device,
        store=satrap.store.StoreConfig(device=options.rows_on),
        place=satrap.train.WorkerContext(threads=options.satrap_threads),
    )
    threads = torch.get_num_threads()

    def fit(samples: Samples) -> object:
        torch.set_num_threads(threads)
        data = satrap.data.read(samples.columns(), described, batch_size=options.batch_size, shuffle=False)
        return trainer.fit(data)

    return fit


def plain_side(options: argparse.Namespace, layout: Any, precision: str) -> Callable[[Samples], object]:
    """Return a function that trains the plain PyTorch loop on samples."""
    described = schema(options.dim)
    bags = Bags(cardinalities(options.rows), options.dim, layout)
    name = options.plain_optimizer or ("adagrad" if "adagrad" in options.optimizer else options.optimizer)
    dense = network(options.model, described)
    plain = Plain(
        dense,
        described,
        bags,
        sparse=SPARSE_OPTIMIZERS[name](list(bags.parameters()), EMBEDDING_LR),
        precision=precision,
        device=options.device,
    )

    def fit(samples: Samples) -> object:
        torch.set_num_threads(options.threads)
        return plain.fit(samples, options.batch_size)

    return fit


def measure(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Run all sides in turn, each repeat on new samples; the first, unmeasured one compiles and warms up."""
    sides = {"satrap": satrap_side(options)}
    for precision in dict.fromkeys(["float32", options.precision]):
        for layout in ("one_table", "per_feature"):
            sides[f"pytorch_{layout}_{precision}"] = plain_side(options, layout, precision)
    count = options.steps * options.batch_size
    rates: dict[str, list[float]] = {name: [] for name in sides}
    cpu: dict[str, list[float]] = {name: [] for name in sides}
    for repeat in range(-1, options.repeats):
        samples = generate(count, cardinalities(options.rows), seed=100 + repeat)
        for name, fit in sides.items():
            start, start_cpu = time.perf_counter(), time.process_time()
            fit(samples)
            seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - start_cpu
            if repeat >= 0:
                rates[name].append(count / seconds)
                cpu[name].append(cpu_seconds / count * 1e6)
            print(f"repeat {repeat:2}  {name:28} {count / seconds:10,.0f} samples/s", flush=True)
    return {
        name: {
            "median_samples_per_second": round(statistics.median(rates[name])),
            "samples_per_second": [round(rate) for rate in rates[name]],
            "median_cpu_seconds_per_million_samples": round(statistics.median(cpu[name]), 2),
        }
        for name in sides
    }


def main() -> None:
    """Measure, print and record."""
    options = arguments()
    sides = measure(options)
    speeds = {name: side["median_samples_per_second"] for name, side in sides.items()}
    faster, ratios = {}, {}
    for precision in dict.fromkeys(["float32", options.precision]):
        best = max((name for name in speeds if name.endswith(precision)), key=speeds.__getitem__)
        faster[precision], ratios[precision] = best, round(speeds["satrap"] / speeds[best], 3)
        print(f"satrap / {best}: {ratios[precision]:.2f}")
    path = write(
        RESULTS,
        {**vars(options), "gomp_spincount": os.environ.get("GOMP_SPINCOUNT", "default")},
        {"sides": sides, "faster_pytorch": faster, "satrap_over_pytorch": ratios},
    )
    print(f"raw figures: {path}")


if __name__ == "__main__":
    main()
