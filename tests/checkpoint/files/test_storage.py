"""Blocks: whatever is changed in a file, not one wrong byte is handed out."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from satrap.checkpoint.files import storage
from satrap.checkpoint.files.storage import BLOCK, Storage
from satrap.errors import CheckpointError
from tests.support.examples import examples

DATA = np.random.default_rng(0).integers(0, 256, 1000, np.uint8).tobytes()


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 3 * BLOCK + 5])
@pytest.mark.parametrize("piece", [7919, 1 << 19, 1 << 21])
def test_what_is_written_is_read(size: int, piece: int, tmp_path: Path) -> None:
    if size > BLOCK and piece == 7919:
        size = BLOCK + 2
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8).tobytes()
    place = Storage(str(tmp_path))
    with place.writer("file") as writer:
        for start in range(0, size, piece):
            assert writer.write(data[start : start + piece]) == len(data[start : start + piece])
    assert (tmp_path / "file").read_bytes() == data
    assert writer.entry.bytes == size
    assert len(writer.entry.crc32) == -(-size // BLOCK)
    with place.open("file", writer.entry) as file:
        assert b"".join(iter(lambda: file.read(piece), b"")) == data
    assert place.read("file", writer.entry) == data


@pytest.mark.parametrize("url", ["local", "memory://seeks"])
def test_reading_goes_on_anywhere(url: str, tmp_path: Path) -> None:
    size = 2 * BLOCK + 5
    data = np.random.default_rng(0).integers(0, 256, size, np.uint8).tobytes()
    place = Storage(str(tmp_path) if url == "local" else url)
    with place.writer("file") as writer:
        writer.write(data)
    with place.open("file", writer.entry) as file:
        assert file.readable()
        for offset in (BLOCK, 0, 1, 2 * BLOCK + 1, BLOCK - 1, size, BLOCK + 1):
            assert file.seek(offset) == offset
            assert file.read(10) == data[offset : offset + 10]
            assert file.read() == data[offset + 10 :]
    assert place.read_start("file", 7) == data[:7]
    assert place.read_start("file", size + 1) == data
    assert place.names() == ["file"]


def test_a_place_in_a_folder_is_absolute_for_other_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place = Storage("run")
    assert (place.url, place.absolute, place.path("")) == ("run", f"{tmp_path}/run", f"{tmp_path}/run")
    assert place.path("data-1/x") == f"{tmp_path}/run/data-1/x"
    assert Storage("memory://runs/x").absolute == "memory://runs/x"
    place.make_folder("a/b")
    assert (tmp_path / "run" / "a" / "b").is_dir()


@settings(max_examples=examples(300), deadline=None)
@given(st.data())
def test_no_change_goes_unnoticed(data: st.DataObject) -> None:
    """Flip, truncate, append, or exchange for a piece of the same file; blocks of 64 bytes."""
    with mock.patch.object(storage, "BLOCK", 64):
        place = Storage("memory://blocks")
        with place.writer("file") as writer:
            writer.write(DATA)
        bad = bytearray(DATA)
        kind = data.draw(st.sampled_from(["flip", "truncate", "append", "swap"]))
        at = data.draw(st.integers(0, len(DATA) - 1))
        if kind == "flip":
            bad[at] ^= data.draw(st.integers(1, 255))
        elif kind == "truncate":
            del bad[at:]
        elif kind == "append":
            bad += data.draw(st.binary(min_size=1, max_size=100))
        else:
            other = data.draw(st.integers(0, 14).filter(lambda i: i != at // 64))
            first, second = slice(other * 64, other * 64 + 64), slice(at // 64 * 64, at // 64 * 64 + 64)
            bad[first], bad[second] = bad[second], bad[first]
            if bytes(bad) == DATA:
                return
        place.put("file", bytes(bad))
        pieces: list[bytes] = []
        with pytest.raises(CheckpointError) as raised, place.open("file", writer.entry) as file:
            pieces.extend(iter(lambda: file.read(13), b""))
        assert DATA.startswith(b"".join(pieces))
        assert raised.value.where.endswith("/file")


def test_an_unreadable_block_is_named(tmp_path: Path) -> None:
    place = Storage(str(tmp_path))
    with place.writer("file") as writer:
        writer.write(DATA)

    class Broken:
        def read(self, _: int) -> bytes:
            raise OSError(5, "Input/output error")

        def close(self) -> None: ...

    with (
        mock.patch.object(place.disk, "open", return_value=Broken()),
        pytest.raises(CheckpointError, match=r"bytes 0 to 999: .*Input/output error"),
    ):
        place.read("file", writer.entry)


def test_unknown_protocol() -> None:
    with pytest.raises(CheckpointError, match="cannot use"):
        Storage("nosuch://x")
