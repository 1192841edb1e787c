"""Training loops with a collection, and the same in plain PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import satrap
from satrap.nn import EmbeddingCollection

IDS = 20
"""Ids of these tests are 0 to 19."""
MODES = {"user": "sum", "tags": "mean", "words": "sum", "best": "max"}
FEATURES = {
    name: satrap.Categorical(dim=4, multi=name != "user", pooling=mode)  # type: ignore[arg-type]
    for name, mode in MODES.items()
}
Columns = dict[str, Any]


def collection(**arguments: Any) -> EmbeddingCollection:
    return EmbeddingCollection(FEATURES, **arguments)


def batch(seed: int, size: int = 16) -> Columns:
    """Return ids with duplicates and empty bags, and a label."""
    rng = np.random.default_rng(seed)
    columns: Columns = {
        "user": torch.from_numpy(rng.integers(0, IDS, size)),
        "clicked": rng.random(size) < 0.5,
    }
    for name in ("tags", "words", "best"):
        lengths = rng.integers(0, 4, size)
        offsets = torch.from_numpy(np.append(0, np.cumsum(lengths)))
        columns[name] = torch.from_numpy(rng.integers(0, IDS, int(offsets[-1]))), offsets
    return columns


class Network(nn.Module):
    """A network of vectors that are given to it."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4 * len(MODES), 1)

    def forward(self, vectors: Mapping[str, Any]) -> Tensor:
        logits: Tensor = self.head(torch.cat([vectors[name] for name in MODES], dim=1))
        return logits[:, 0]


def loss_of(logits: Tensor, columns: Columns) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(logits, torch.as_tensor(columns["clicked"]).float())


class Bags(nn.Module):
    """Plain tables that begin with the rows of a collection."""

    def __init__(self, embeddings: EmbeddingCollection) -> None:
        super().__init__()
        rows = table(embeddings)
        self.tables = nn.ModuleDict(
            {
                name: nn.EmbeddingBag.from_pretrained(
                    rows[name], freeze=False, mode=mode, include_last_offset=True
                )
                for name, mode in MODES.items()
            }
        )

    def forward(self, columns: Columns) -> dict[str, Tensor]:
        every = {**columns, "user": (columns["user"], torch.arange(len(columns["user"]) + 1))}
        return {name: bags(*every[name]) for name, bags in self.tables.items()}


def table(embeddings: EmbeddingCollection) -> dict[str, Tensor]:
    """Return the rows of ids 0 to 19 of each feature."""
    with torch.no_grad():
        ids = torch.arange(IDS)
        vectors = embeddings({name: ids if name == "user" else ids[:, None] for name in MODES})
    return {name: vectors[name].clone() for name in MODES}  # type: ignore[union-attr]


def same_rows(embeddings: EmbeddingCollection, bags: Bags, tolerance: float = 1e-6) -> None:
    for name, rows in table(embeddings).items():
        expected = bags.tables[name].weight.detach()  # type: ignore[union-attr]
        torch.testing.assert_close(rows, expected, rtol=0, atol=tolerance)
