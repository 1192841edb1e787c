"""Row files: what is written is read; whatever else a file with right checksums holds is an error."""

from __future__ import annotations

import io
import json
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from satrap.checkpoint import read_checkpoint, verify, write_checkpoint
from satrap.checkpoint.files.storage import BLOCK, FileEntry, Storage
from satrap.checkpoint.manifest import read_manifest, write_manifest
from satrap.checkpoint.rows import read_rows, write_rows
from satrap.errors import CheckpointError
from tests.checkpoint.states import make_checkpoint, make_chunk
from tests.support.examples import examples


class Buffer(io.BytesIO):
    """What `write_rows` writes to."""

    entry = FileEntry(0)


@pytest.mark.parametrize("state", [0, 3])
def test_what_is_written_is_read(state: int) -> None:
    chunks = [make_chunk("ü/x", [1, 2**64 - 1], 4, state), make_chunk("ü/x", [7], 4, state, 0.5)]
    file = Buffer()
    assert write_rows(file, chunks[0], chunks[1:]) == 3  # type: ignore[arg-type]
    found = list(read_rows(io.BytesIO(file.getvalue()), "ü/x"))
    assert [chunk.table for chunk in found] == ["ü/x", "ü/x"]
    for one, other in zip(chunks, found, strict=True):
        for name in ("ids", "weights", "state"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
            assert getattr(one, name).dtype == getattr(other, name).dtype


LAYOUT: Any = {"ids": ["<u8", -1], "weights": ["<f4", 2], "state": ["<f4", 0]}
IDS, WEIGHTS = pa.array([1, 2], pa.uint64()), pa.array([[1, 2], [3, 4]], pa.list_(pa.float32(), 2))


@pytest.mark.parametrize(
    ("columns", "layout", "table"),
    [
        ({"ids": IDS, "weights": WEIGHTS}, LAYOUT, "other"),
        ({"ids": IDS, "weights": WEIGHTS}, [], "user"),
        ({"ids": IDS, "weights": WEIGHTS}, {**LAYOUT, "weights": ["O", 2]}, "user"),
        ({"ids": IDS, "weights": WEIGHTS}, {**LAYOUT, "ids": ["<u8", 2]}, "user"),
        ({"ids": IDS, "weights": WEIGHTS}, {**LAYOUT, "weights": ["<f4", -1]}, "user"),
        ({"ids": IDS, "weights": WEIGHTS}, {**LAYOUT, "weights": ["<f4", 1]}, "user"),
        ({"ids": IDS, "weights": WEIGHTS}, {**LAYOUT, "weights": ["<f4", 1 << 40]}, "user"),
        ({"ids": IDS}, LAYOUT, "user"),
        ({"ids": IDS.cast(pa.uint32()), "weights": WEIGHTS}, LAYOUT, "user"),
        ({"ids": pa.array([1, None], pa.uint64()), "weights": WEIGHTS}, LAYOUT, "user"),
        ({"ids": IDS, "weights": WEIGHTS.cast(pa.list_(pa.float64(), 2))}, LAYOUT, "user"),
        ({"ids": IDS, "weights": pa.array([[1, 2], None], pa.list_(pa.float32(), 2))}, LAYOUT, "user"),
        ({"ids": IDS, "weights": pa.array([[1], [2, 3, 4]], pa.list_(pa.float32()))}, LAYOUT, "user"),
        ({"ids": pa.array(["a", "b"]), "weights": WEIGHTS}, LAYOUT, "user"),
    ],
)
def test_rows_of_another_shape_are_refused(
    columns: dict[str, pa.Array], layout: Any, table: str, tmp_path: Path
) -> None:
    made = pa.table(columns).replace_schema_metadata({"table": table, "layout": json.dumps(layout)})
    file = io.BytesIO()
    with pa.ipc.new_stream(file, made.schema) as stream:
        stream.write_table(made)
    write_checkpoint(str(tmp_path), make_checkpoint())
    name = next(n for n, e in read_manifest(Storage(str(tmp_path))).files.items() if e.table == "user")
    put(tmp_path, name, file.getvalue())
    with pytest.raises(CheckpointError, match="damaged"):
        verify(str(tmp_path))


def put(place: Path, name: str, data: bytes) -> None:
    """Give a checkpoint another content of a file, with right checksums."""
    storage = Storage(str(place))
    manifest = read_manifest(storage)
    (place / manifest.data / name).write_bytes(data)
    sums = [zlib.crc32(data[at : at + BLOCK]) for at in range(0, len(data), BLOCK)]
    entry = replace(manifest.files[name], bytes=len(data), crc32=sums)
    write_manifest(storage, replace(manifest, files={**manifest.files, name: entry}))


@settings(
    max_examples=examples(300), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(st.data())
def test_changed_bytes_with_right_checksums_are_an_error_or_rows(valid: Path, data: st.DataObject) -> None:
    """Some bytes of any file are others, are missing, or are there twice."""
    manifest = read_manifest(Storage(str(valid)))
    name = data.draw(st.sampled_from(sorted(manifest.files)))
    file = valid / manifest.data / name
    whole = file.read_bytes()
    changed = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        at, length = data.draw(st.integers(0, len(changed))), data.draw(st.integers(0, 16))
        match data.draw(st.sampled_from(["bytes", "remove", "twice"])):
            case "bytes":
                extremes = st.sampled_from([b"\xff" * 4, b"\0" * 8, b"\xff\xff\xff\x7f"])
                new = data.draw(extremes | st.binary(max_size=4))
                changed[at : at + len(new)] = new
            case "remove":
                del changed[at : at + length]
            case _:
                changed[at:at] = changed[at : at + length]
    put(valid, name, bytes(changed))
    try:
        verify(str(valid))
        for _, chunk in read_checkpoint(str(valid)).chunks:
            assert chunk.ids.shape == chunk.weights.shape[:1] == chunk.state.shape[:1]
            assert chunk.weights.dtype == chunk.state.dtype == np.float32
    except CheckpointError:
        pass
    finally:
        put(valid, name, whole)
