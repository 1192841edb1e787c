"""`Trainer.fit` from arrays with rows on the device, beside plain PyTorch with one table there."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import torch

from benchmarks.gpu.timing import Timing
from benchmarks.train_vs_pytorch.__main__ import plain_side, satrap_side
from benchmarks.train_vs_pytorch.workload import cardinalities, generate

LOOP = {16_384: 6.8e6, 65_536: 8.0e6}
"""Samples/s of the loop of the first prototype, on an H200, with ids already on the device."""


def lines(timing: Timing) -> Iterator[tuple[str, str, str]]:
    """Yield samples/s of both, and their ratio."""
    sizes = (32,) if timing.small else tuple(LOOP)
    for batch_size in sizes:
        steps, rows, dim = (2, 2000, 16) if timing.small else (60, 4_000_000, 128)
        options = argparse.Namespace(
            model="dlrm",
            rows=rows,
            dim=dim,
            batch_size=batch_size,
            optimizer="rowwise_adagrad",
            plain_optimizer="adagrad",
            mode="sync",
            precision="bfloat16",
            device=timing.device.type,
            rows_on="cuda",
            threads=torch.get_num_threads(),
            satrap_threads=None,
        )
        sides = {
            "satrap": satrap_side(options),
            "PyTorch": plain_side(options, "one_table", "bfloat16"),
        }
        speeds: dict[str, float] = {}
        for repeat in range(1 if timing.small else 3):
            samples = generate(steps * batch_size, cardinalities(rows), seed=repeat)
            for name, fit in sides.items():
                start = time.perf_counter()
                fit(samples)
                speeds[name] = steps * batch_size / (time.perf_counter() - start)
        for name, speed in speeds.items():
            aim = f"{0.85 * LOOP[batch_size]:,.0f}" if name == "satrap" and not timing.small else ""
            yield f"DLRM, batch {batch_size}, bf16, {name}, samples/s", f"{speed:,.0f}", aim
        yield (
            f"DLRM, batch {batch_size}, satrap to PyTorch",
            f"{speeds['satrap'] / speeds['PyTorch']:.2f}",
            "2",
        )
