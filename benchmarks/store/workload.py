"""Batches of 26 features x 4096 ids, as a click-through model reads them, and interleaved timing."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from satrap.store import distinct

FEATURES, SAMPLES = 26, 4096
SPREAD = 7919
"""A prime: `rank * SPREAD % size` scatters the frequent ids over a table, as hashed ids are."""
ZIPF = 1.05


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch, feature after feature.

    Args:
        local: int64[26 * 4096], id inside its feature's table.
        flat: int64, the same inside one table of all features.
        ids: uint64, `flat` scrambled to 64 bits: what satrap reads.
        splits: int64[27], the start of each feature.
        unique, unique_splits, inverse: the result of `distinct(ids, splits)`.
    """

    local: npt.NDArray[np.int64]
    flat: npt.NDArray[np.int64]
    ids: npt.NDArray[np.uint64]
    splits: npt.NDArray[np.int64]
    unique: npt.NDArray[np.uint64]
    unique_splits: npt.NDArray[np.int64]
    inverse: npt.NDArray[np.int32]


def scramble(x: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """Return 64-bit ids, one to one (splitmix64)."""
    x = x.astype(np.uint64)
    with np.errstate(over="ignore"):
        x += np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def ranks(rng: np.random.Generator, size: int, count: int, skew: str) -> npt.NDArray[np.int64]:
    """Return ranks 0..size-1: uniform, or by a bounded Pareto law of exponent 1.05 (close to Zipf)."""
    if skew == "uniform":
        return rng.integers(0, size, count)
    b = 1.0 - ZIPF
    low, high = 0.5**b, (size + 0.5) ** b
    x = (low + rng.random(count) * (high - low)) ** (1 / b)
    return np.clip(np.floor(x + 0.5).astype(np.int64), 1, size) - 1


def batches(rows: int, skew: str, count: int, seed: int = 1) -> list[Batch]:
    """Return `count` batches over 26 tables of `rows // 26` rows each."""
    rng, size = np.random.default_rng(seed), rows // FEATURES
    splits = np.arange(FEATURES + 1, dtype=np.int64) * SAMPLES
    result = []
    for _ in range(count):
        local = ranks(rng, size, FEATURES * SAMPLES, skew) * SPREAD % size
        flat = local + np.repeat(np.arange(FEATURES), SAMPLES) * size
        ids = scramble(flat)
        result.append(Batch(local, flat, ids, splits, *distinct(ids, splits)))
    return result


def all_ids(rows: int, chunk: int, seed: int = 2) -> list[tuple[npt.NDArray[np.uint64], npt.NDArray[Any]]]:
    """Return (ids, splits) that create every row, in random order: `chunk` ids per request."""
    size = rows // FEATURES
    per, rng = max(1, chunk // FEATURES), np.random.default_rng(seed)
    order = np.stack([rng.permutation(size) for _ in range(FEATURES)])
    order += np.arange(FEATURES)[:, None] * size
    requests = []
    for first in range(0, size, per):
        part = order[:, first : first + per]
        splits = np.arange(FEATURES + 1, dtype=np.int64) * part.shape[1]
        requests.append((scramble(part.ravel()), splits))
    return requests


Methods = Mapping[str, Callable[[int], object]]


def interleaved(methods: Methods, count: int, repeats: int, *, threads: int = 1) -> dict[str, list[float]]:
    """Return seconds per batch of each method and repeat.

    Methods take turns batch by batch, in another order each time, so that other load of the machine affects
    all equally; a method never runs on a batch that another method has just brought into the cache. With one
    thread it is the processor time, so waiting for a core that other programs use does not count.
    """
    clock = time.process_time if threads == 1 else time.perf_counter
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    order, shuffle = list(methods), random.Random(5)
    for repeat in range(-1, repeats):  # the first, unmeasured, compiles and warms up
        spent = dict.fromkeys(methods, 0.0)
        for i in range(count):
            shuffle.shuffle(order)
            for position, name in enumerate(order):
                start = clock()
                methods[name]((i + 3 * position) % count)
                spent[name] += clock() - start
        if repeat >= 0:
            for name in methods:
                seconds[name].append(spent[name] / count)
    return seconds


def summary(seconds: dict[str, list[float]], per: float, limits: Mapping[str, str]) -> dict[str, Any]:
    """Return per method the median ns per id and, where it has a limit, the median ratio to it."""
    result: dict[str, Any] = {}
    for name, times in seconds.items():
        entry: dict[str, Any] = {"ns": round(statistics.median(times) / per * 1e9, 2)}
        quartiles = np.percentile(times, [25, 75]) / per * 1e9
        entry["quartiles_ns"] = [round(float(q), 2) for q in quartiles]
        if name in limits:
            ratios = [a / b for a, b in zip(times, seconds[limits[name]], strict=True)]
            entry["limit"] = limits[name]
            entry["ratio"] = round(statistics.median(ratios), 3)
        result[name] = entry
    return result


def show(title: str, rows: Mapping[str, Any]) -> None:
    """Print one table of figures."""
    print(f"\n## {title}")
    for name, entry in rows.items():
        ratio = f"x{entry['ratio']:.2f} of {entry['limit']}" if "ratio" in entry else ""
        low, high = entry["quartiles_ns"]
        print(f"{name:36} {entry['ns']:9.2f} ns  [{low:.2f} .. {high:.2f}]  {ratio}", flush=True)
