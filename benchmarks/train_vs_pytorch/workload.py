"""A Criteo-like workload: 13 numbers, 26 categorical features, Zipf-distributed ids, learnable labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

import satrap

NUM_NUMERIC, NUM_CATEGORICAL = 13, 26
SMALLEST_FEATURE = 4
SPREAD = 7919
"""A prime: `id * SPREAD % cardinality` scatters the frequent ids over the table, as hashed ids are."""


def cardinalities(total_rows: int) -> npt.NDArray[np.int64]:
    """Sizes of the 26 features, a geometric ladder with a sum of about `total_rows`, like Criteo's."""
    low, high = 1.0, 10.0
    steps = np.arange(NUM_CATEGORICAL)
    for _ in range(60):
        ratio = (low + high) / 2
        if (SMALLEST_FEATURE * ratio**steps).sum() > total_rows:
            high = ratio
        else:
            low = ratio
    sizes: npt.NDArray[np.int64] = np.round(SMALLEST_FEATURE * low**steps).astype(np.int64)
    return sizes


@dataclass(frozen=True, slots=True)
class Samples:
    """`numeric` float32[n, 13], `ids` int64[n, 26] (each below its feature's size), `labels` float32[n]."""

    numeric: npt.NDArray[np.float32]
    ids: npt.NDArray[np.int64]
    labels: npt.NDArray[np.float32]

    def slice(self, start: int, stop: int) -> Samples:
        """Return a view of rows start..stop."""
        return Samples(self.numeric[start:stop], self.ids[start:stop], self.labels[start:stop])

    def columns(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return the samples as named columns, the input of `satrap.data.read`."""
        return {
            "label": self.labels,
            **{f"I{i}": self.numeric[:, i] for i in range(NUM_NUMERIC)},
            **{f"C{i}": self.ids[:, i] for i in range(NUM_CATEGORICAL)},
        }


def generate(count: int, sizes: npt.NDArray[np.int64], seed: int) -> Samples:
    """Draw samples; id ranks follow a Zipf law of exponent 1 (log-uniform ranks)."""
    random = np.random.default_rng(seed)
    numeric = random.standard_normal((count, NUM_NUMERIC), dtype=np.float32)
    ids = np.empty((count, NUM_CATEGORICAL), dtype=np.int64)
    for feature, size in enumerate(sizes):
        rank = np.minimum(np.exp(random.random(count) * np.log(size + 1)).astype(np.int64) - 1, size - 1)
        ids[:, feature] = np.maximum(rank, 0) * SPREAD % size
    logit = numeric[:, 0] + 0.5 * numeric[:, 1] + (ids[:, :8] % 3 - 1).sum(axis=1) / 3 - 1
    labels = (random.random(count) < 1 / (1 + np.exp(-logit))).astype(np.float32)
    return Samples(numeric, ids, labels)


def schema(dim: int) -> satrap.Schema:
    """Return the schema of `Samples.columns`."""
    numbers = {f"I{i}": satrap.Numeric() for i in range(NUM_NUMERIC)}
    features = {f"C{i}": satrap.Categorical(dim=dim) for i in range(NUM_CATEGORICAL)}
    return satrap.Schema(["label"], {**features, **numbers})
