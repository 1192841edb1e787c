"""Rows that a network recognises, to see which ones it was trained on."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

import satrap
from satrap.batch import EmbeddedBatch
from tests.train.plain import Tower, make_schema

ROWS, BATCH = 411, 16


def columns() -> dict[str, Any]:
    random = np.random.default_rng(0)
    return {
        "user": random.integers(0, 60, ROWS),
        "item": random.integers(0, 40, ROWS),
        "tags": [random.integers(0, 20, 2).tolist() for _ in range(ROWS)],
        "price": np.arange(ROWS, dtype=np.float32) / ROWS,
        "clicked": random.integers(0, 2, ROWS),
    }


def data(rank: int, world: int, one_user: bool = False) -> Any:
    rows = columns() | ({"user": np.zeros(ROWS, np.int64)} if one_user else {})
    found = satrap.data.read(rows, make_schema(), batch_size=BATCH, shuffle=True)
    return found.with_options(seed=3, buffer_rows=64, worker=rank, workers=world)


class Watched(Tower):
    """Remembers the samples it was trained on, batch by batch."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[int]] = []

    def forward(self, batch: EmbeddedBatch) -> Tensor:
        if self.training:
            assert batch.numeric is not None
            self.seen.append((batch.numeric.numpy()[:, 0] * ROWS).round().astype(int).tolist())
        return super().forward(batch)
