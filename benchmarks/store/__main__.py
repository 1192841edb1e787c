"""The store against the memory's limit, PyTorch, FBGEMM and a dict. See README.md here."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from benchmarks.record import write
from benchmarks.store import operations, rivals, scale
from satrap.runtime.malloc import keep_freed_memory

RESULTS = Path(__file__).parent / "results"
SECTIONS = ("operations", "create", "dedup", "step", "dict", "scale", "memory")


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.store", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--dims", nargs="+", type=int, default=[16, 64, 128])
    parser.add_argument("--skews", nargs="+", choices=["zipf", "uniform"], default=["zipf", "uniform"])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument(
        "--optimizers", nargs="+", choices=list(operations.OPTIMIZERS), default=list(operations.OPTIMIZERS)
    )
    parser.add_argument("--mib", type=int, default=512, help="weights of a table, MiB (cache: 32)")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument(
        "--largest", type=int, default=100_000_000, help="rows of the largest table of `scale`"
    )
    parser.add_argument(
        "--quick", action="store_true", help="some minutes: Zipf ids, one thread, 5 repeats, 10 million rows"
    )
    parser.add_argument(
        "--allocator",
        choices=["kept", "system"],
        default="kept",
        help="keep freed memory, as satrap's trainer does, or use the C library's defaults",
    )
    parser.add_argument("--fbgemm", type=Path, help="folder of `pip install --target` with fbgemm-gpu-cpu")
    options = parser.parse_args()
    if options.quick:
        options.skews, options.threads, options.repeats, options.largest = ["zipf"], [1], 5, 10_000_000
    return options


def run(section: str, o: argparse.Namespace) -> Any:
    """Return the figures of one section."""
    sizes = {dim: (o.mib << 20) // (4 * dim) for dim in o.dims}
    if section == "operations":
        return {
            f"dim {dim}, {skew}, threads {threads}": operations.measure(
                dim, rows, skew, threads, o.repeats, o.optimizers
            )
            for dim, rows in sizes.items()
            for skew in o.skews
            for threads in o.threads
        }
    if section == "create":
        return _create(sizes)
    if section == "dedup":
        return {skew: rivals.dedup(sizes[o.dims[0]], skew, o.repeats) for skew in o.skews}
    if section == "step":
        return {
            f"dim {dim}, {skew}, threads {threads}": rivals.whole_step(dim, rows, skew, threads, o.repeats)
            for dim, rows in sizes.items()
            for skew in o.skews
            for threads in o.threads
        }
    if section == "dict":
        return rivals.plain_dict(16, 100_000, o.repeats)
    if section == "scale":
        return scale.throughput(o.largest, RESULTS)
    return scale.memory()


def _create(sizes: dict[int, int]) -> dict[str, Any]:
    results: dict[str, Any] = {"first touch of 2 MiB": operations.first_touch(128)}
    print("first touch of 2 MiB, ms of processor:", results["first touch of 2 MiB"], flush=True)
    for dim, rows in sizes.items():
        for chunk in (2000, 52000):
            for touched in (True, False):
                name = f"dim {dim}, {chunk} ids a request, memory {'touched' if touched else 'fresh'}"
                figures = results[name] = operations.create(
                    dim, rows, operations.OPTIMIZERS["rowwise_adagrad"], chunk, touched
                )
                cpu, wall = figures["request_cpu_ms"], figures["request_ms"]
                print(
                    f"{name}: {figures['cpu_ns_per_row']} ns a row; pause of growth (longest request) "
                    f"{cpu['longest']} ms of processor, {wall['longest']} ms by the clock; median "
                    f"{cpu['median']} and {wall['median']} ms",
                    flush=True,
                )
    return results


def main() -> None:
    """Measure, print and record; the file is written after each section.

    PyTorch and FBGEMM allocate their outputs again in each step, which takes longer if the memory comes from
    the system each time. By default page faults are excluded and freed memory is kept, also in large blocks;
    `--allocator system` uses the C library's defaults.
    """
    options = arguments()
    if options.allocator == "kept":
        keep_freed_memory(1 << 30, (2 << 30) - 1)
    if options.fbgemm:
        sys.path.append(str(options.fbgemm))
    parameters = {**vars(options), "fbgemm": options.fbgemm is not None}
    results: dict[str, Any] = {}
    path = None
    for section in options.only:
        results[section] = run(section, options)
        path = write(RESULTS, parameters, results, path)
    print(f"\nraw figures: {path}")


if __name__ == "__main__":
    main()
