"""Samples/s and CPU seconds of hybrid training over a shard server, on PERSIA's workload. See README.md."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import satrap  # isort: skip  # before torch, like satrap's programs: see satrap.runtime.threads
import torch

from benchmarks.persia import workload
from benchmarks.persia.stages import Stages, difference
from benchmarks.record import write
from satrap.batch import Batch
from satrap.exchange import Exchange
from satrap.exchange.servers import ClientOptions, ServersExchange
from satrap.schema import Table
from satrap.train import Observer, Progress

PUBLISHED = {
    "tiny 16": (74_000, 26.4),
    "tiny 64": (31_300, 57.3),
    "dlrm 16": (29_400, 56.9),
    "dlrm 64": (17_100, 97.8),
}
"""PERSIA 0.1, hybrid, on two cores: samples/s, CPU seconds of all processes per million samples."""

SERVERS = "satrap.exchange.servers"
PLACES = (
    ("dedup", "satrap.embedding.plan:EmbeddingPlan", "ticket"),
    ("split and send lookup", f"{SERVERS}.client.exchange:ServersExchange", "_send_lookup"),
    ("split, to 16 bits and send push", f"{SERVERS}.client.exchange:ServersExchange", "_send_update"),
    ("receive", "satrap.rpc.client.loop:ClientLoop", "_receive"),
    ("rows to 32 bits (in receive)", "satrap.exchange.wire.rows:RowReplies", "put"),
    ("wait for rows", "satrap.train.progress.fit_stats:FitStats", "wait"),
    ("pool", "satrap.embedding.module:Embeddings", "embed"),
    ("backward", "satrap.dense.backends.data_parallel:DataParallelBackend", "backward"),
    ("dense step", "satrap.dense.backends.protocol:PendingStep", "result"),
    ("hand over push", f"{SERVERS}.client.exchange:ServersExchange", "apply"),
    ("whole step", "satrap.train.loop:Loop", "_step"),
    ("progress", "satrap.train.progress.fit_stats:FitStats", "after_step"),
)


class ShardProcess:
    """`benchmarks.persia.shard` on a free port, with a journal in `folder` if it is not None."""

    def __init__(self, journal: Path | None) -> None:
        command = [sys.executable, "-m", "benchmarks.persia.shard", "127.0.0.1:0"]
        command += [str(journal)] if journal else []
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.address = self._line().split()[4]

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def snapshot(self) -> dict[str, Any]:
        self.process.send_signal(signal.SIGUSR1)
        results: dict[str, Any] = json.loads(self._line())
        return results

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(20)


class Window(Observer):
    """Records the figures of worker and shard after the warm-up and after the measured batches."""

    def __init__(self, stages: Stages, shard: ShardProcess) -> None:
        self._stages, self._shard = stages, shard
        self.worker: list[dict[str, Any]] = []
        self.shard: list[dict[str, Any]] = []
        self.loss = 0.0

    def step(self, progress: Progress) -> None:
        if progress.step in (workload.WARM_UP, workload.WARM_UP + workload.MEASURED):
            self.shard.append(self._shard.snapshot())
            self.worker.append(self._stages.snapshot())
            self.loss = progress.loss


class Loader:
    """A data set with timed reads; it runs in the trainer's reader thread."""

    def __init__(self, data: Any, stages: Stages) -> None:
        self._data, self._stages = data, stages

    def batches(self, epoch: int = 0, position: Any = None) -> Iterator[Batch]:
        return self._stages.iterate("read", self._data.batches(epoch, position))


def one(options: argparse.Namespace, dim: int) -> dict[str, Any]:
    """Train on all batches, in this process, with a shard process; return the figures."""
    described = workload.schema(dim)
    stages, shard = Stages(), ShardProcess(options.journal_folder)
    for place in PLACES:
        stages.wrap(*place)
    window = Window(stages, shard)

    def connect(tables: Sequence[Table]) -> Exchange:
        return ServersExchange([shard.address], tables, options=ClientOptions(deadline=120.0))

    trainer = satrap.Trainer(
        workload.network(options.model, dim),
        described,
        embedding_optimizer=satrap.optim.Adagrad(lr=0.02),
        dense_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05),
        mode=options.mode,
        staleness=options.staleness,
        training=satrap.train.TrainingOptions(
            precision=options.precision, staleness_warmup=options.staleness_warmup
        ),
        place=satrap.train.WorkerContext(connect, threads=options.threads),
    )
    data = satrap.data.read(str(options.data), described, batch_size=workload.BATCH)
    try:
        trainer.fit(Loader(data, stages), observers=[window])
    finally:
        trainer.close()
        shard.stop()
    results = figures(options, dim, window)
    if options.journal_folder:
        size = sum(file.stat().st_size for file in options.journal_folder.rglob("*") if file.is_file())
        results["journal_bytes_per_sample"] = round(size / (workload.BATCHES * workload.BATCH), 1)
    return results


def figures(options: argparse.Namespace, dim: int, window: Window) -> dict[str, Any]:
    samples = workload.MEASURED * workload.BATCH
    seconds = window.worker[1]["at"] - window.worker[0]["at"]
    worker = difference(*window.worker, workload.MEASURED, samples)
    shard = difference(*window.shard, workload.MEASURED, samples)
    speed, published = samples / seconds, PUBLISHED[f"{options.model} {dim}"]
    cpu = worker["cpu_seconds_per_million_samples"] + shard["cpu_seconds_per_million_samples"]
    return {
        "samples_per_second": round(speed),
        "ms_per_batch": round(1000 * seconds / workload.MEASURED, 2),
        "cpu_seconds_per_million_samples": round(cpu, 2),
        "speed_over_published": round(speed / published[0], 2),
        "published_cpu_over_this": round(published[1] / cpu, 2),
        "cores": cores(window, seconds, cpu * samples / 1e6),
        "loss": round(window.loss, 4),
        "worker": worker,
        "shard": shard,
    }


def cores(window: Window, seconds: float, own: float) -> dict[str, float]:
    """Return the cores used by this run and by other programs, idle, and taken by the machine's host."""
    before, after = (results["machine"] for results in window.worker)
    shares = {name: (after[name] - before[name]) / seconds for name in before}
    return {
        "own": round(own / seconds, 2),
        "others": round(shares["busy"] - own / seconds, 2),
        "idle": round(shares["idle"], 2),
        "stolen": round(shares["stolen"], 2),
    }


def in_process(dim: int, journal: str | None = None) -> dict[str, Any]:
    """Run `one` in a new process, so that earlier allocations and compilations do not count."""
    arguments = [a for a in sys.argv[1:] if a not in ("--write", "--journal")]
    command = [sys.executable, "-m", "benchmarks.persia", *arguments, "--dims", str(dim), "--inside"]
    command += ["--journal-folder", journal] if journal else []
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    results: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return results


def with_journal(options: argparse.Namespace, dim: int, without: dict[str, Any]) -> dict[str, Any]:
    """Run once more with a journal, on the disk of the data; compare with the run just before."""
    with tempfile.TemporaryDirectory(dir=options.data.parent) as folder:
        results = in_process(dim, folder)
    for name in ("samples_per_second", "cpu_seconds_per_million_samples"):
        results[f"{name}_to_without"] = round(results[name] / without[name], 3)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=["tiny", "dlrm"], default="tiny")
    parser.add_argument("--dims", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--mode", choices=["hybrid", "sync"], default="hybrid")
    parser.add_argument("--staleness", type=int, default=4)
    parser.add_argument("--staleness-warmup", type=int, help="steps; default: as satrap chooses")
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch")
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--data", type=Path, default=Path("runs/persia.arrow"), help="created if missing")
    parser.add_argument("--journal", action="store_true", help="in turns without and with a journal")
    parser.add_argument("--journal-folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--write", action="store_true", help="write the raw result as JSON next to this file")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        print(json.dumps(one(options, options.dims[-1])))
        return
    workload.write_file(options.data)
    load, results = os.getloadavg()[0], {}
    for dim in options.dims:
        runs = []
        for _ in range(options.repeats):
            runs.append(in_process(dim))
            if options.journal:
                runs.append(with_journal(options, dim, runs[-1]))
        results[f"dim{dim}"] = runs
        for run in runs:
            short = {k: v for k, v in run.items() if k not in ("worker", "shard")}
            parts = [run[k]["cpu_seconds_per_million_samples"] for k in ("worker", "shard")]
            print(f"dim {dim} {options.model} {options.mode}: {short} worker, shard: {parts}", flush=True)
    if options.write:
        parameters = {k: str(v) if isinstance(v, Path) else v for k, v in vars(options).items()}
        parameters |= {"load_before": round(load, 2), "published": PUBLISHED}
        print(write(Path(__file__).parent / "results", parameters, results))


if __name__ == "__main__":
    main()
