"""Rows in GPU memory: index, sparse step and whole training, each beside its limit. See README.md here.

`python -m benchmarks.gpu` needs a CUDA device and takes at most ten minutes; the table comes last. With
TRITON_INTERPRET=1, everything runs in small on the CPU: it shows that the program works, no speed.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import satrap  # isort: skip  # before torch, like satrap's programs: see satrap.runtime.threads
import torch

from benchmarks.gpu import index, sparse_step, tier, training
from benchmarks.gpu.timing import Timing
from benchmarks.record import write

assert satrap

RESULTS = Path(__file__).parent / "results"
Line = tuple[str, str, str]
"""What was measured, the figure, and what it must reach; empty: nothing."""

SECTIONS: dict[str, Callable[[Timing], Iterator[Line]]] = {
    "copy": lambda timing: iter([("copy rate, TB/s", f"{timing.copy_rate / 1e12:.3f}", "")]),
    "step": sparse_step.lines,
    "small": sparse_step.small_lines,
    "index": index.lines,
    "tier": tier.lines,
    "training": training.lines,
}


def main() -> None:
    """Run the sections, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--sections", nargs="+", choices=list(SECTIONS), default=list(SECTIONS))
    parser.add_argument("--write", action="store_true", help="write the figures to results/")
    options = parser.parse_args()
    timing = Timing()
    table: list[Line] = []
    for name in options.sections:
        try:
            for line in SECTIONS[name](timing):
                print(*line, sep=" | ", flush=True)
                table.append(line)
        except Exception:  # noqa: BLE001 - a later section may still have something to say
            traceback.print_exc()
            table.append((name, "FAILED", ""))
    if options.write:
        results: dict[str, Any] = {"device": timing.name, "table": table}
        print("raw figures:", write(RESULTS, vars(options), results))
    print(f"\n{timing.name}, PyTorch {torch.__version__}")
    print("| figure | measured | must reach |\n| --- | --- | --- |")
    for line in table:
        print(f"| {' | '.join(line)} |")
    sys.exit(any(figure == "FAILED" for _, figure, _ in table))


if __name__ == "__main__":
    main()
