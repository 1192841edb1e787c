"""The index alone: distinct keys probed at several loads, and new ids inserted, with and without eviction."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from benchmarks.gpu.timing import Timing
from satrap.retention import Eviction
from satrap.store.gpu.index import DeviceIndex
from satrap.store.gpu.order import Order


def lines(timing: Timing) -> Iterator[tuple[str, str, str]]:
    """Yield G keys/s of probes and inserts."""
    rows, keys = (2000, 128) if timing.small else (1 << 28, 1 << 20)
    yield from _filled(timing, rows, keys)
    yield from _evicting(timing, 1000 if timing.small else 1 << 24, keys)


def _ids(first: int, count: int, device: torch.device) -> torch.Tensor:
    numbers = np.arange(first, first + count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return torch.from_numpy(numbers.view(np.int64)).to(device)


def _filled(timing: Timing, rows: int, keys: int) -> Iterator[tuple[str, str, str]]:
    device = timing.device
    index, order = DeviceIndex(["a"], rows, device=device), Order(["a"], keys, device)
    splits, count = (
        torch.tensor([0, keys], device=device),
        torch.tensor([keys], dtype=torch.int32, device=device),
    )
    first, refused = 0, 0
    spent = []
    for load in (0.5, 0.75):
        while first + keys <= load / 0.8 * rows:
            distinct = order.distinct(_ids(first, keys, device), splits, count)
            found = index.find(distinct, use=True)
            begin = timing.milliseconds(
                lambda _, d=distinct, f=found: index.insert(d, *f[1:]), rounds=1, warm_up=0
            )
            spent.append(begin)
            refused += index.refused
            first += keys
        distinct = order.distinct(_ids(first // 2, keys, device), splits, count)
        probe = timing.milliseconds(lambda _, d=distinct: index.find(d, use=False))
        target = "12" if load == 0.75 else ""
        yield f"probe, load {load} of {rows} rows, G keys/s", f"{keys / probe / 1e6:.2f}", target
        yield f"insert of new ids up to load {load}, G keys/s", f"{keys / np.median(spent) / 1e6:.3f}", ""
        spent.clear()
    yield "ids without a place up to load 0.75", str(refused), "0"
    yield "index bytes per row", f"{index.bytes / rows:.1f}", "24"


def _evicting(timing: Timing, rows: int, keys: int) -> Iterator[tuple[str, str, str]]:
    device = timing.device
    index, order = DeviceIndex(["a"], rows, Eviction(), device=device), Order(["a"], keys, device)
    splits, count = (
        torch.tensor([0, keys], device=device),
        torch.tensor([keys], dtype=torch.int32, device=device),
    )
    turns = 2 * rows // keys + 1
    for turn in range(turns):
        distinct = order.distinct(_ids(turn * keys, keys, device), splits, count)
        index.insert(distinct, *index.find(distinct, use=True)[1:])
    spent = []
    for turn in range(turns, turns + 5):
        distinct = order.distinct(_ids(turn * keys, keys, device), splits, count)
        found = index.find(distinct, use=True)
        spent.append(
            timing.milliseconds(lambda _, d=distinct, f=found: index.insert(d, *f[1:]), rounds=1, warm_up=0)
        )
    yield "insert with eviction, G keys/s", f"{keys / np.median(spent) / 1e6:.3f}", "1.5"
    yield "refused of the last insert with eviction", str(index.refused), "0"
