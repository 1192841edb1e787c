"""PERSIA 0.1's workload: 26 features of Criteo's sizes, Zipf(1.05) ids, 280 batches of 4096."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import nn

import satrap
from benchmarks.exchange.workload import CARDINALITIES

BATCH, BATCHES, NUMBERS = 4096, 280, 13
WARM_UP, MEASURED = 40, 160
FILE_ROWS = 8 * BATCH
"""Rows of one record batch in the file."""
PLANTED = (0, 4, 6, 10)
"""Features that the labels depend on."""


def _zipf(random: np.random.RandomState, size: int, n: int, s: float = 1.05) -> npt.NDArray[np.int64]:
    e = 1 - s
    x = (random.random_sample(n) * ((size + 1.0) ** e - 1) + 1) ** (1 / e)
    return np.minimum(np.floor(x).astype(np.int64) - 1, size - 1)


def columns() -> dict[str, npt.NDArray[np.generic]]:
    """Draw all samples from `RandomState(1)`: ids, numbers, labels, in this order."""
    random, n = np.random.RandomState(1), BATCHES * BATCH
    ids = [_zipf(random, size, n) for size in CARDINALITIES]
    numbers = random.standard_normal((n, NUMBERS)).astype(np.float32)
    weights = random.standard_normal(NUMBERS) * 0.3
    hidden = sum((ids[f] * 2654435761 % 1000) / 1000 - 0.5 for f in PLANTED)
    logits = numbers @ weights - 1 + hidden
    labels = (random.random_sample(n) < 1 / (1 + np.exp(-logits))).astype(np.float32)
    return {
        "label": labels,
        **{f"I{i}": np.ascontiguousarray(numbers[:, i]) for i in range(NUMBERS)},
        **{f"C{i}": values for i, values in enumerate(ids)},
    }


def write_file(path: Path) -> None:
    """Write the samples as an Arrow file, unless it exists."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table(columns())
    part = path.with_suffix(".part")
    with pa.OSFile(str(part), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=FILE_ROWS)
    part.rename(path)


def schema(dim: int) -> satrap.Schema:
    """Return 26 features of a width and 13 numbers."""
    numbers = {f"I{i}": satrap.Numeric() for i in range(NUMBERS)}
    features = {f"C{i}": satrap.Categorical(dim=dim) for i in range(len(CARDINALITIES))}
    return satrap.Schema(["label"], {**features, **numbers})


def network(name: str, dim: int) -> nn.Module:
    """Return "tiny": 26 * dim + 13 -> 8 -> 1; or "dlrm": bottom 13-64-dim, pairs, top 256-128-1."""
    torch.manual_seed(1)
    described = schema(dim)
    if name == "tiny":
        return satrap.models.DNN(described, hidden=[8])
    return satrap.models.DLRM(described, bottom=[64], hidden=[256, 128])
