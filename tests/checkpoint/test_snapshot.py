"""Checkpoints: what is written is read; damage is named; a failed save leaves the old one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from satrap.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from satrap.errors import CheckpointError
from satrap.store import Chunk


def make_chunk(table: str, ids: list[int], dim: int, state: int) -> Chunk:
    n = len(ids)
    return Chunk(
        table=table,
        ids=np.array(ids, dtype=np.uint64),
        weights=np.arange(n * dim, dtype=np.float32).reshape(n, dim),
        state=-np.arange(n * state, dtype=np.float32).reshape(n, state),
    )


def make_checkpoint(value: float = 1.0) -> Checkpoint:
    parameter = torch.nn.Parameter(torch.full((3,), value))
    optimizer = torch.optim.Adam([parameter], lr=0.1)
    parameter.grad = torch.ones(3)
    optimizer.step()
    chunks = [
        ("user", make_chunk("user", [1, 2**64 - 1], 4, 1)),
        ("user", make_chunk("user", [7], 4, 1)),
        ("strange/name ü", make_chunk("strange/name ü", [0], 2, 0)),
    ]
    model = {"w": parameter.detach().clone(), "b": torch.zeros((), dtype=torch.int64)}
    return Checkpoint({"steps": 5}, model, optimizer.state_dict(), chunks)


def equal(first: Checkpoint, second: Checkpoint) -> None:
    assert first.settings == second.settings
    assert first.model.keys() == second.model.keys()
    assert all(torch.equal(first.model[k], second.model[k]) for k in first.model)
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


@pytest.mark.parametrize("place", ["local", "memory"])
def test_round_trip(place: str, tmp_path: Path) -> None:
    url = str(tmp_path / "run") if place == "local" else f"memory://{tmp_path.name}/run"
    write_checkpoint(url, make_checkpoint())
    equal(make_checkpoint(), read_checkpoint(url))


def test_newer_replaces_older_and_leaves_nothing_behind(tmp_path: Path) -> None:
    write_checkpoint(str(tmp_path), make_checkpoint(1.0))
    write_checkpoint(str(tmp_path), make_checkpoint(2.0))
    equal(make_checkpoint(2.0), read_checkpoint(str(tmp_path)))
    assert len([p for p in tmp_path.iterdir() if p.is_dir()]) == 1


def test_a_failed_save_keeps_the_old_one(tmp_path: Path) -> None:
    write_checkpoint(str(tmp_path), make_checkpoint(1.0))
    broken = make_checkpoint(2.0)

    def chunks() -> Any:
        yield ("user", make_chunk("user", [1], 4, 1))
        raise OSError(28, "No space left on device")

    broken.chunks = chunks()
    with pytest.raises(CheckpointError, match="No space left"):
        write_checkpoint(str(tmp_path), broken)
    equal(make_checkpoint(1.0), read_checkpoint(str(tmp_path)))


def test_no_manifest_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no checkpoint here"):
        read_checkpoint(str(tmp_path))


def test_unknown_format(tmp_path: Path) -> None:
    write_checkpoint(str(tmp_path), make_checkpoint())
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps({**manifest, "format": 99}))
    with pytest.raises(CheckpointError, match="format 99"):
        read_checkpoint(str(tmp_path))


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
@pytest.mark.parametrize("number", range(4))
def test_damage_is_named(damage: str, number: int, tmp_path: Path) -> None:
    write_checkpoint(str(tmp_path), make_checkpoint())
    files = sorted(p for p in tmp_path.glob("data-*/*"))
    assert len(files) == 4
    victim = files[number]
    data = bytearray(victim.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 1
        victim.write_bytes(data)
    elif damage == "truncate":
        victim.write_bytes(data[:-1])
    else:
        victim.unlink()
    with pytest.raises(CheckpointError) as raised:
        read_checkpoint(str(tmp_path))
    assert victim.name in raised.value.where


def test_garbage_manifest(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_bytes(b"\xff{")
    with pytest.raises(CheckpointError, match="damaged"):
        read_checkpoint(str(tmp_path))


def test_unknown_protocol() -> None:
    with pytest.raises(CheckpointError, match="cannot use"):
        read_checkpoint("nosuch://x")
