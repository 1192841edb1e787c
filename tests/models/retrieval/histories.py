"""Data of models that predict the next item: a history, and the item that follows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import satrap
from satrap.batch import Batch, EmbeddedBatch, Jagged, JaggedRows

WIDTH, LONGEST = 8, 6
EVENT: dict[str, Any] = {"dim": WIDTH, "multi": True, "pooling": "none", "sequence": "history"}
FEATURES: dict[str, satrap.schema.Feature] = {
    "history": satrap.Categorical(**EVENT, table="movie", max_values=LONGEST, keep="last"),
    "genres": satrap.Categorical(**EVENT, table="genre"),
    "user": satrap.Categorical(dim=4),
    "movie": satrap.Categorical(dim=WIDTH),
    "genre": satrap.Categorical(dim=WIDTH),
}
SCHEMA = satrap.Schema([satrap.Label(name="seen", implicit=True)], FEATURES)


def embedded(lengths: list[int], *, drawn: int | None = None, seed: int = 0) -> EmbeddedBatch:
    """Return a batch of histories of these lengths, with this number of candidates."""
    rng = np.random.default_rng(seed)
    size, offsets = len(lengths), np.cumsum([0, *lengths])
    counts = {"history": offsets[-1], "genres": offsets[-1], "user": size, "movie": size, "genre": size}
    ids = {
        name: Jagged(
            rng.integers(1, 30, n).astype(np.uint64), offsets if name in ("history", "genres") else None
        )
        for name, n in counts.items()
    }
    generator = torch.Generator().manual_seed(seed)
    tables = {
        name: torch.randn(30, 4 if name == "user" else WIDTH, generator=generator)
        for name in ("user", "movie", "genre")
    }

    def embed(batch: Batch) -> EmbeddedBatch:
        rows: dict[str, Any] = {}
        for name, jagged in batch.ids.items():
            values = tables[SCHEMA.table_of(name)][jagged.values.astype(np.int64)].clone().requires_grad_()
            places = jagged.offsets
            rows[name] = values if places is None else JaggedRows(values, torch.from_numpy(places))
        return EmbeddedBatch(batch.size, rows, torch.zeros(batch.size, 0), source=batch)

    batch = Batch(size, ids)
    made = embed(batch)
    if drawn is not None:
        items = {name: Jagged(rng.integers(1, 30, drawn).astype(np.uint64)) for name in ("movie", "genre")}
        batch.candidates = Batch(drawn, items)
        made.candidates = embed(batch.candidates)
    return made
