"""Steps with half of the rows in host memory, and batches known ahead, beside all rows on the device."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

import satrap
from benchmarks.gpu.sparse_step import power_law
from benchmarks.gpu.timing import Timing
from satrap.store import Eviction, Shard, Tier
from satrap.store.arrays import FeatureIds

AHEAD = 4
"""Batches whose ids are known before their step."""


def lines(timing: Timing) -> Iterator[tuple[str, str, str]]:
    """Yield steps/s of both, and their ratio."""
    rows, size, dim, steps = (400, 32, 16, 3) if timing.small else (8_000_000, 262_144, 128, 40)
    each = 4 * dim + 4 + 24  # weights, the sum of row-wise Adagrad, index
    stores: dict[str, dict[str, Any]] = {
        "all rows on the device": {"memory": 2 * rows * each},
        "half in host memory": {
            "memory": rows // 2 * each,
            "eviction": Eviction("lru"),
            "tier": Tier("memory", 2 * rows * each),
        },
    }
    rng = np.random.default_rng(0)
    batches = [power_law(size, rows, rng) for _ in range(steps + AHEAD)]
    every = np.arange(rows, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    speeds = {}
    for name, options in stores.items():
        table = satrap.Table("a", dim=dim, optimizer=satrap.optim.RowWiseAdagrad(lr=0.01))
        with_rows = Shard([table], device="cuda", **options)
        for first in range(0, rows, size):
            _step(with_rows, every[first : first + size], dim, timing)
        for ids in batches[:AHEAD]:
            with_rows.ahead.prefetch(0, ids, np.array([0, size]))
        _wait(timing)
        start = time.perf_counter()
        for number in range(steps):
            with_rows.ahead.prefetch(0, batches[number + AHEAD], np.array([0, size]))
            _step(with_rows, batches[number], dim, timing)
        _wait(timing)
        speeds[name] = steps / (time.perf_counter() - start)
        yield f"{name}: {size} ids of {rows}, dim {dim}, steps/s", f"{speeds[name]:.2f}", ""
        with_rows.close()
    everything, half = speeds.values()
    yield "half of the rows in host memory, share of all on the device", f"{half / everything:.2f}", "0.5"


def _step(shard: Shard, ids: np.ndarray, dim: int, timing: Timing) -> None:
    splits, features = np.array([0, len(ids)]), [FeatureIds(0, len(ids), None, None, "sum")]
    batch = shard.look_up_batch(0, shard.prepare_batch(0, ids, splits), len(ids), features, create=True)
    shard.check_batch(0, batch)
    shard.update_batch(0, batch, torch.full((len(ids), dim), 0.01, device=timing.device))


def _wait(timing: Timing) -> None:
    if not timing.small:
        torch.cuda.synchronize()
