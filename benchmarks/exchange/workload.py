"""Requests shaped like the Criteo-Kaggle batches of the published comparison: 26 tables, Zipf(1.05) ids."""

from __future__ import annotations

import numpy as np

from satrap.exchange import LookupRequest
from satrap.optim import Adagrad
from satrap.schema import Table
from satrap.store import distinct

CARDINALITIES = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10,
    5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)  # fmt: skip
BATCH = 4096


def tables(dim: int) -> list[Table]:
    return [Table(f"feature{i}", dim=dim, optimizer=Adagrad(lr=0.02)) for i in range(len(CARDINALITIES))]


def _zipf(rng: np.random.RandomState, size: int, n: int, s: float = 1.05) -> np.ndarray:
    e = 1 - s
    x = (rng.random_sample(n) * ((size + 1.0) ** e - 1) + 1) ** (1 / e)
    return np.minimum(np.floor(x).astype(np.int64) - 1, size - 1)


def requests(batches: int, *, seed: int = 1) -> list[LookupRequest]:
    """One request per batch: the unique ids of 26 features, about 27,500, spread over all 64 bits."""
    rng = np.random.RandomState(seed)
    ids = [_zipf(rng, size, batches * BATCH).astype(np.uint64) for size in CARDINALITIES]
    spread = [i * np.uint64(0x9E3779B97F4A7C15) + np.uint64(12345) for i in ids]
    splits = np.arange(len(ids) + 1, dtype=np.int64) * BATCH
    made = []
    for b in range(batches):
        flat = np.concatenate([i[b * BATCH : (b + 1) * BATCH] for i in spread])
        unique, bounds, _ = distinct(flat, splits)
        made.append(LookupRequest(0, unique, bounds))
    return made
