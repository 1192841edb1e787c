"""Checkpoints: what is written is read; damage is named; a failed save leaves the old one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from satrap.checkpoint import read_checkpoint, write_checkpoint
from satrap.errors import CheckpointError
from tests.checkpoint.states import equal, make_checkpoint, make_chunk


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
    with pytest.raises(CheckpointError, match="the folder has no checkpoint"):
        read_checkpoint(str(tmp_path))


def test_unknown_format(tmp_path: Path) -> None:
    write_checkpoint(str(tmp_path), make_checkpoint())
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps({**manifest, "format": 99}))
    with pytest.raises(CheckpointError, match="format 99"):
        read_checkpoint(str(tmp_path))


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
@pytest.mark.parametrize("number", range(5))
def test_damage_is_named(damage: str, number: int, tmp_path: Path) -> None:
    write_checkpoint(str(tmp_path), make_checkpoint())
    files = sorted(p for p in tmp_path.glob("data-*/*"))
    assert len(files) == 5
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
        list(read_checkpoint(str(tmp_path)).chunks)
    assert victim.name in raised.value.where


def test_garbage_manifest(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_bytes(b"\xff{")
    with pytest.raises(CheckpointError, match="damaged"):
        read_checkpoint(str(tmp_path))


def test_unknown_protocol() -> None:
    with pytest.raises(CheckpointError, match="cannot use"):
        read_checkpoint("nosuch://x")


@pytest.mark.parametrize("bit", [1, 4])
def test_no_changed_manifest_is_believed(bit: int, tmp_path: Path) -> None:
    """Every byte flipped: an error, not other settings or other counts."""
    write_checkpoint(str(tmp_path), make_checkpoint())
    manifest = tmp_path / "manifest.json"
    whole = manifest.read_bytes()
    for at in range(len(whole)):
        changed = bytearray(whole)
        changed[at] ^= bit
        if json.loads(whole) == _parsed(bytes(changed)):
            continue  # white space
        manifest.write_bytes(changed)
        with pytest.raises(CheckpointError):
            read_checkpoint(str(tmp_path))


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return None
