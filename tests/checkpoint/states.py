"""Small trained states to save, and what it means that two are equal."""

from __future__ import annotations

import numpy as np
import torch

from satrap.checkpoint import Checkpoint
from satrap.store import Chunk


def make_chunk(table: str, ids: list[int], dim: int, state: int, value: float = 0.0) -> Chunk:
    n = len(ids)
    return Chunk(
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
