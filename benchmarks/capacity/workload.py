"""Criteo-Syn: 26 features of Criteo's proportions whose ids come from spaces of any size.

PERSIA's capacity test (Lian et al., "Persia: An Open, Hybrid System Scaling Deep Learning-based Recommenders
up to 100 Trillion Parameters", KDD 2022) counts every possible id, times the width of its row. Rows
exist once they are touched.
"""

from __future__ import annotations

import numpy as np

import satrap
from benchmarks.exchange.workload import CARDINALITIES
from benchmarks.persia.workload import NUMBERS
from satrap.data import Dataset


def sizes(parameters: float, dim: int) -> list[int]:
    """Return the number of possible ids of each feature, for a total number of parameters of all rows."""
    times = parameters / dim / sum(CARDINALITIES)
    return [max(1, round(size * times)) for size in CARDINALITIES]


def zipf(random: np.random.Generator, size: int, count: int, s: float = 1.05) -> np.ndarray:
    """Draw ranks, int64[count] below `size`, with probabilities near 1 / (rank + 1)^s."""
    e = 1 - s
    x = (random.random(count) * ((size + 1.0) ** e - 1) + 1) ** (1 / e)  # inverts the integral
    return np.minimum(x.astype(np.int64) - 1, size - 1)


def spread(ranks: np.ndarray, small: int, large: int) -> np.ndarray:
    """Return unique ids for ranks below `small`, spread over all ids below `large`."""
    step = large // small
    return ranks * step + ranks % step


def samples(
    parameters: float,
    of: float,
    schema: satrap.Schema,
    dim: int,
    batch_size: int,
    batches: int,
    seed: int = 1,
) -> Dataset:
    """Return batches in memory; satrap hashes the ids over all 64 bits, as with ids from a file.

    Args:
        parameters: total number of parameters in the rows of all ids.
        of: the parameters of a smaller space, whose Zipf distribution is spread over this one, so that ids
            repeat equally often; equal to `parameters`: Zipf over the whole space.
        schema: the schema of `benchmarks.persia.workload`.
        dim: width of a row.
        batch_size: samples per batch.
        batches: number of batches.
        seed: seed of all random numbers.
    """
    random, count = np.random.default_rng(seed), batches * batch_size
    columns: dict[str, np.ndarray] = {"label": (random.random(count) < 0.25).astype(np.float32)}
    numbers = random.standard_normal((NUMBERS, count), dtype=np.float32)
    columns |= {f"I{i}": numbers[i] for i in range(NUMBERS)}
    for i, (small, large) in enumerate(zip(sizes(of, dim), sizes(parameters, dim), strict=True)):
        columns[f"C{i}"] = spread(zipf(random, small, count), small, large)
    return satrap.data.read(columns, schema, batch_size=batch_size)
