"""The whole sparse step: ids on the host to rows changed on the device, with the requests of a trainer.

The batch is like the published one of dynamicemb: 1,048,570 ids by a power law of exponent 1.05, about
350,000 of them distinct, dim 128. Bytes count each distinct row once per read and once per write with its
state, and gathered rows and gradients once each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

import satrap
from benchmarks.gpu.timing import Timing
from satrap.store import Shard
from satrap.store.arrays import FeatureIds

SETS = 4
"""Batches in turn, so that no cache holds them."""
TARGETS = {"sgd": 0.40, "adam": 0.45}
OPTIMIZERS = {"sgd": satrap.optim.SGD(lr=0.01), "adam": satrap.optim.Adam(lr=0.001)}


def power_law(count: int, ids: int, rng: np.random.Generator) -> np.ndarray:
    """Return uint64[count], ids by a power law of exponent 1.05, scattered over 64 bits."""
    weights = np.arange(1, ids + 1, dtype=np.float64) ** -1.05
    drawn = np.searchsorted(np.cumsum(weights) / weights.sum(), rng.random(count))
    return drawn.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)


def lines(timing: Timing) -> Iterator[tuple[str, str, str]]:
    """Yield the figures of SGD and Adam."""
    size, features, dim = (16, 2, 16) if timing.small else (104_857, 10, 128)
    rng = np.random.default_rng(0)
    sets = [power_law(size * features, 100 if timing.small else 8_000_000, rng) for _ in range(SETS)]
    for name, optimizer in OPTIMIZERS.items():
        yield from _step(timing, name, optimizer, sets, size, features, dim)


def _step(
    timing: Timing, name: str, optimizer: Any, sets: list[np.ndarray], size: int, features: int, dim: int
) -> Iterator[tuple[str, str, str]]:
    count = size * features
    table = satrap.Table("a", dim=dim, optimizer=optimizer)
    memory = (1 << 22) if timing.small else (24 << 30)
    shard = Shard([table], device="cuda", memory=memory)
    spans = [FeatureIds(f * size, (f + 1) * size, None, None, "sum") for f in range(features)]
    splits = np.array([0, count], np.int64)
    gradients = torch.randn(count, dim, device=timing.device) / 100
    prepare = timing.milliseconds(lambda i: shard.prepare_batch(0, sets[i % SETS], splits))

    def step(number: int) -> None:
        prepared = shard.prepare_batch(0, sets[number % SETS], splits)
        batch = shard.look_up_batch(0, prepared, size, spans, create=True)
        shard.update_batch(0, batch, gradients)

    for number in range(SETS):  # rows are created
        step(number)
    spent = timing.milliseconds(step)
    distinct = np.mean([len(np.unique(ids)) for ids in sets])
    state = {"sgd": 0, "adam": 2}[name]
    moved = 4 * dim * (distinct * (1 + 2 * (1 + state)) + 2 * count)
    share = timing.share(moved, spent)
    yield f"{name}: ids to the device and distinct, ms", f"{prepare:.3f}", ""
    yield f"{name}: whole sparse step, dim {dim}, ms", f"{spent:.3f}", ""
    yield f"{name}: the same, share of the copy rate", f"{share:.3f}", f"{TARGETS[name]}"
    group = shard.groups[0]
    rows = max(1, int(group.directory.counters()["rows"].sum()))
    backend: Any = group.backend
    beside = group.directory.bytes / backend.index.rows  # it grows up to the limit
    yield f"{name}: index bytes per row at the limit ({rows} rows there)", f"{beside:.1f}", "24"
    shard.close()


def small_lines(timing: Timing) -> Iterator[tuple[str, str, str]]:
    """Yield the time of a small step, which is bound by launches: batch 4,096, 26 features, dim 16."""
    size, features = (8, 2) if timing.small else (4096, 26)
    sets = [power_law(size * features, 100_000, np.random.default_rng(i)) for i in range(SETS)]
    table = satrap.Table("a", dim=16, optimizer=satrap.optim.RowWiseAdagrad(lr=0.01))
    shard = Shard([table], device="cuda", memory=(1 << 22) if timing.small else (2 << 30))
    spans = [FeatureIds(f * size, (f + 1) * size, None, None, "sum") for f in range(features)]
    splits = np.array([0, size * features], np.int64)
    gradients = torch.randn(size * features, 16, device=timing.device) / 100

    def step(number: int) -> None:
        prepared = shard.prepare_batch(0, sets[number % SETS], splits)
        batch = shard.look_up_batch(0, prepared, size, spans, create=True)
        shard.update_batch(0, batch, gradients)

    yield f"sparse step, {size} x {features}, dim 16, ms", f"{timing.milliseconds(step):.3f}", "0.15"
    shard.close()
