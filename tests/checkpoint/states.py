"""Small trained states to save, and what it means that two are equal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

import satrap
from satrap.checkpoint import Checkpoint, Series
from satrap.store import Delta, Eviction, RowChunk, Shard


def make_chunk(table: str, ids: list[int], dim: int, state: int, value: float = 0.0) -> RowChunk:
    n = len(ids)
    return RowChunk(
        table=table,
        ids=np.array(ids, dtype=np.uint64),
        weights=value + np.arange(n * dim, dtype=np.float32).reshape(n, dim),
        state=value - np.arange(n * state, dtype=np.float32).reshape(n, state),
    )


def make_checkpoint(value: float = 1.0) -> Checkpoint:
    parameter = torch.nn.Parameter(torch.full((3,), float(value)))
    optimizer = torch.optim.Adam([parameter], lr=0.1)
    parameter.grad = torch.ones(3)
    optimizer.step()
    chunks = [
        ("user", make_chunk("user", [1, 2**64 - 1], 4, 1, value)),
        ("user", make_chunk("user", [7], 4, 1)),
        ("strange/name ü", make_chunk("strange/name ü", [0], 2, 0)),
    ]
    model = {"w": parameter.detach().clone(), "b": torch.zeros((), dtype=torch.int64)}
    extra = {"rng": torch.arange(8, dtype=torch.uint8)}
    return Checkpoint({"steps": value}, model, optimizer.state_dict(), chunks, extra)


def equal(first: Checkpoint, second: Checkpoint) -> None:
    assert first.settings == second.settings
    assert first.model.keys() == second.model.keys()
    assert all(torch.equal(first.model[k], second.model[k]) for k in first.model)
    assert first.extra.keys() == second.extra.keys()
    assert all(torch.equal(first.extra[k], second.extra[k]) for k in first.extra)
    assert first.optimizer["param_groups"] == second.optimizer["param_groups"]
    for index, entry in first.optimizer["state"].items():
        for key, value in entry.items():
            assert torch.equal(torch.as_tensor(second.optimizer["state"][index][key]), value)
    pairs = list(zip(first.chunks, second.chunks, strict=True))
    assert pairs
    for (table, chunk), (other_table, other) in pairs:
        assert table == other_table
        for field in ("ids", "weights", "state"):
            np.testing.assert_array_equal(getattr(chunk, field), getattr(other, field))


def committed(root: Path) -> dict[int, float]:
    """Step -> value of every snapshot a reader finds, each read whole."""
    series = Series(str(root))
    found = {}
    for step in series.steps():
        _, checkpoint = series.read(step)
        value = checkpoint.settings["steps"]
        equal(make_checkpoint(value), checkpoint)
        found[step] = value
    return found


Bytes = list[tuple[str, bytes, bytes, bytes]]


def content(chunks: Iterator[tuple[str, RowChunk]]) -> Bytes:
    """Rows in order, whatever the chunks."""
    return [
        (table, c.ids[i].tobytes(), c.weights[i].tobytes(), c.state[i].tobytes())
        for table, c in chunks
        for i in range(len(c.ids))
    ]


class Trained:
    """A small store that evicts, saved in deltas."""

    def __init__(self, root: Path, seed: int = 0, keep: int = 2) -> None:
        tables = [satrap.Table("a", dim=3), satrap.Table("b", dim=3), satrap.Table("c", dim=3)]
        self.shard = Shard(
            tables, optimizer=satrap.optim.Adagrad(lr=0.1), seed=1, memory=190_000, eviction=Eviction()
        )
        self.rng = np.random.default_rng(seed)
        self.series = Series(str(root), keep=keep)
        self.step = 0

    def train(self, rows: int = 400) -> None:
        self.step += 1
        for table in "abc":
            ids = self.rng.integers(0, 5000, rows).astype(np.uint64)
            self.shard.lookup(table, ids)
            self.shard.update(table, ids, self.rng.standard_normal((rows, 3)).astype(np.float32))

    def take(self, *, full: bool = False) -> tuple[Checkpoint, Delta]:
        full = full or not self.series.followable(self.step)
        delta = self.shard.changes.take(full=full, chunk_rows=64)
        chunks = ((chunk.table, chunk) for chunk in delta.chunks)
        deleted = None if delta.full else delta.deleted
        return Checkpoint({"steps": self.step}, {"w": torch.zeros(2)}, {}, chunks, deleted=deleted), delta

    def save(self, *, full: bool = False) -> Bytes:
        """Save, and return what the store holds."""
        self.series.write(self.step, self.take(full=full)[0])
        return self.rows()

    def rows(self) -> Bytes:
        return content((c.table, c) for c in self.shard.snapshot())
