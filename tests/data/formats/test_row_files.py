"""Rows in files of other programs: they are what the table needs, or an error, in little memory."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from satrap.data.encode.hashing import hash_ids
from satrap.data.formats.row_files import RowFileSpec, is_export, read_rows
from satrap.errors import DataError
from tests.support.examples import THOROUGH, examples

WANTED = RowFileSpec("item", {2: 3}, salt=5)


FLOAT = pa.float32()


def lists(*rows: Any, kind: pa.DataType = FLOAT) -> pa.Array:
    return pa.array(rows, pa.list_(kind))


def read(path: Path, **arguments: Any) -> list[Any]:
    """Return (ids, weights, state or None) of all rows of a file."""
    columns = zip(*read_rows(path, WANTED, **arguments), strict=True)
    return [None if column[0] is None else np.concatenate(column) for column in columns]


def parquet(folder: Path, **columns: Any) -> Path:
    path = folder / "rows.parquet"
    pq.write_table(pa.table(columns), path)
    return path


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.float32()), pa.large_list(pa.float64()), pa.list_(pa.float16(), 2)]
)
def test_rows_are_read(kind: pa.DataType, tmp_path: Path) -> None:
    weights = np.random.default_rng(0).normal(size=(40_000, 2)).astype(np.float16)
    ids = np.arange(40_000, dtype=np.uint64) + np.uint64(2**63)
    made = pa.array(weights.tolist(), kind)
    path = parquet(tmp_path, more=ids, weights=made, id=ids, state=lists(*np.ones((40_000, 3)).tolist()))
    found, values, state = read(path)
    np.testing.assert_array_equal(found, ids)
    np.testing.assert_array_equal(values, weights.astype(np.float32))
    assert state is not None
    assert state.shape == (40_000, 3)
    assert values.dtype == state.dtype == np.float32


def test_ids_as_in_the_data_are_hashed(tmp_path: Path) -> None:
    path = parquet(tmp_path, id=["a", "b"], weights=lists([1, 2], [3, 4]))
    ids, _, state = read(path, raw=True)
    np.testing.assert_array_equal(ids, hash_ids(["a", "b"], 5))
    assert state is None


def test_a_matrix_of_any_floats_is_read(tmp_path: Path) -> None:
    for kind in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        save_file({"w": torch.arange(6, dtype=kind).reshape(3, 2)}, tmp_path / "m.safetensors")
        ids, weights, _ = read(tmp_path / "m.safetensors")
        np.testing.assert_array_equal(ids, hash_ids(np.arange(3, dtype=np.int64), 5))
        np.testing.assert_array_equal(weights, np.arange(6, dtype=np.float32).reshape(3, 2))


GOOD = lists([1, 2], [3, 4])
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no weights": ({"id": [1, 2]}, "cannot be read"),
    "no id": ({"weights": GOOD}, "cannot be read"),
    "boolean ids": ({"id": [True, False], "weights": GOOD}, "the wrong type"),
    "ids with a point": ({"id": [1.0, 2.0], "weights": GOOD}, "the wrong type"),
    "ids in lists": ({"id": GOOD, "weights": GOOD}, "the wrong type"),
    "text for ids": ({"id": ["a", "b"], "weights": GOOD}, "the wrong type"),
    "negative ids": ({"id": [-1, 2], "weights": GOOD}, "cannot be read"),
    "a missing id": ({"id": [1, None], "weights": GOOD}, "has no id"),
    "boolean weights": (
        {"id": [1, 2], "weights": lists([True, False], [True, True], kind=pa.bool_())},
        "the wrong type",
    ),
    "whole weights": ({"id": [1, 2], "weights": lists([1, 2], [3, 4], kind=pa.int64())}, "the wrong type"),
    "text for weights": ({"id": [1, 2], "weights": ["a", "b"]}, "the wrong type"),
    "weights in structures": ({"id": [1, 2], "weights": [{"a": 1.0}, {"a": 2.0}]}, "the wrong type"),
    "no number": ({"id": [1, 2], "weights": lists([1, 2], [3, float("nan")])}, "row 2"),
    "an infinite number": ({"id": [1, 2], "weights": lists([1, float("inf")], [3, 4])}, "row 1"),
    "infinite in 32 bits": ({"id": [1, 2], "weights": lists([1, 1e300], [3, 4], kind=pa.float64())}, "row 1"),
    "a missing number": ({"id": [1, 2], "weights": lists([1, None], [3, 4])}, "row 1"),
    "a missing row": ({"id": [1, 2, 3], "weights": lists([1, 2], None, [3, 4])}, "same number"),
    "rows of other lengths": ({"id": [1, 2], "weights": lists([1], [2, 3, 4])}, "same number"),
    "wide rows": (
        {"id": [1, 2], "weights": lists([1, 2, 3], [4, 5, 6])},
        "have 3 weights, but table 'item' has 2",
    ),
    "another state": (
        {"id": [1, 2], "weights": GOOD, "state": GOOD},
        "2 state values, but the optimizer needs 3",
    ),
    "state that is no number": (
        {"id": [1, 2], "weights": GOOD, "state": lists([1, 2, 3], [1, 2, float("nan")])},
        "row 2",
    ),
    "no rows": ({"id": pa.array([], pa.uint64()), "weights": pa.array([], GOOD.type)}, "no rows"),
}


@pytest.fixture
def whole_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the process that looks whether a file's metadata is damaged, which it is not."""
    monkeypatch.setattr("satrap.data.formats.row_files._try_metadata", lambda _: None)


@pytest.mark.usefixtures("whole_metadata")
@pytest.mark.parametrize("wrong", WRONG)
def test_rows_that_do_not_fit_are_refused(wrong: str, tmp_path: Path) -> None:
    columns, what = WRONG[wrong]
    path = parquet(tmp_path, **columns)
    with pytest.raises(DataError, match=what) as caught:
        read(path)
    assert str(path) in caught.value.where


@pytest.mark.parametrize(
    ("tensors", "what"),
    [
        ({"w": torch.ones(3, 2, dtype=torch.bool)}, "not a matrix of floating point"),
        ({"w": torch.ones(3, 2, dtype=torch.int64)}, "not a matrix of floating point"),
        ({"w": torch.tensor([[1, 2], [float("nan"), 4]])}, "row 2"),
        ({"w": torch.ones(3, 5)}, "5 weights, but table 'item' has 2"),
        ({"w": torch.ones(2)}, "0 matrices"),
        ({"w": torch.ones(3, 2), "v": torch.ones(3, 2)}, "2 matrices"),
    ],
)
def test_matrices_that_do_not_fit_are_refused(
    tensors: dict[str, torch.Tensor], what: str, tmp_path: Path
) -> None:
    save_file(tensors, tmp_path / "m.safetensors")
    with pytest.raises(DataError, match=what):
        read(tmp_path / "m.safetensors")
    with pytest.raises(DataError):
        read(tmp_path / "m.safetensors", tensor="nothing")


@pytest.mark.parametrize("ending", ["safetensors", "npz", "parquet"])
def test_a_pipe_is_not_waited_for(ending: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / f"pipe.{ending}")
    with pytest.raises(DataError, match="a pipe or a device"):
        read(tmp_path / f"pipe.{ending}")
    with pytest.raises(DataError, match="does not exist"):
        read(tmp_path / f"nothing.{ending}")


@pytest.mark.parametrize("values", [np.array(["a", "b"]), np.array([7, 9], np.int32), np.array([7.0, 9.0])])
def test_arrays_are_read(values: Any, tmp_path: Path) -> None:
    weights = np.arange(4, dtype=np.float64).reshape(2, 2)
    np.savez(tmp_path / "rows.npz", id=values, weights=weights)
    ids, found, _ = read(tmp_path / "rows.npz")
    np.testing.assert_array_equal(ids, hash_ids(values.tolist(), 5))
    np.testing.assert_array_equal(found, weights.astype(np.float32))


@pytest.mark.parametrize(
    ("arrays", "what"),
    [
        ({"id": [1, 2]}, "cannot be read"),
        ({"id": [1, 2], "weights": np.ones((3, 2))}, "id is int64"),
        ({"id": [1, 2], "weights": np.ones((2, 2), np.int64)}, "weights int64"),
        ({"id": [1, 2], "weights": np.ones((2, 3))}, "have 3 weights, but table 'item' has 2"),
        ({"id": [1, 2], "weights": np.array([[1.0, 2.0], [3.0, np.nan]])}, "NaN"),
        ({"id": np.array([1, "a"], object), "weights": np.ones((2, 2))}, "cannot be read"),
        ({"id": [1, 1], "weights": np.ones((2, 2))}, "an id occurs twice"),
        ({"id": [], "weights": np.ones((0, 2))}, "no rows"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(arrays: dict[str, Any], what: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", **arrays)
    with pytest.raises(DataError, match=what) as caught:
        read(tmp_path / "rows.npz")
    assert str(tmp_path) in caught.value.where


def test_an_id_that_occurs_twice_is_found_in_all_pieces(tmp_path: Path) -> None:
    ids = np.arange(40_000)
    ids[39_000] = 17
    path = parquet(tmp_path, id=ids, weights=pa.array(np.ones((40_000, 2)).tolist(), pa.list_(FLOAT)))
    with pytest.raises(DataError, match="an id occurs twice") as caught:
        read(path)
    assert "rows 18 and 39001" in caught.value.where


def test_a_number_that_is_none_is_found_by_its_row_in_the_file(tmp_path: Path) -> None:
    weights = np.ones((40_000, 2))
    weights[30_000, 1] = np.inf
    path = parquet(tmp_path, id=np.arange(40_000), weights=pa.array(weights.tolist(), pa.list_(FLOAT)))
    with pytest.raises(DataError, match="NaN or infinite") as caught:
        read(path)
    assert "row 30001" in caught.value.where


def test_ids_of_an_exported_table_are_taken_as_they_are(tmp_path: Path) -> None:
    columns = pa.table({"id": np.array([5, 6], np.uint64), "weights": GOOD})
    for metadata, exported in ((None, False), ({"table": "item"}, True)):
        path = tmp_path / "rows.parquet"
        pq.write_table(columns.replace_schema_metadata(metadata), path)
        assert is_export(path) == exported
        expected = [5, 6] if exported else hash_ids([5, 6], 5)
        np.testing.assert_array_equal(read(path, raw=None)[0], expected)


def test_state_is_left_out_where_it_is_not_wanted(tmp_path: Path) -> None:
    path = parquet(tmp_path, id=[1, 2], weights=GOOD, state=lists([1], [2]))
    [rows] = read_rows(path, RowFileSpec("item", {2: None}, 5))
    assert rows.state is None


LARGE = """
import sys
from pathlib import Path
from satrap.errors import DataError
from satrap.data.formats.row_files import RowFileSpec, read_rows
try:
    list(read_rows(Path(sys.argv[1]), RowFileSpec("item", {2: 3}, 0), raw=True))
except DataError as error:
    print(error.what)
"""


@pytest.mark.slow
@pytest.mark.parametrize("column", ["weights", "id"])
def test_a_value_of_400_megabytes_is_refused_before_it_is_read(column: str, tmp_path: Path) -> None:
    """In a file of a few kilobytes; the process has less memory than the value needs."""
    large = pa.array([np.zeros(100_000_000, np.float32)], GOOD.type) if column == "weights" else GOOD[:1]
    path = parquet(tmp_path, id=["x" * 400_000_000 if column == "id" else "a"], weights=large)
    del large

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (500 << 20, 500 << 20))

    done = subprocess.run(
        [sys.executable, "-c", LARGE, str(path)],
        preexec_fn=limit,
        env={**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"},  # mimalloc would reserve a gigabyte
        capture_output=True,
        text=True,
        timeout=100,
    )
    expected = "the rows have 100000000 weights" if column == "weights" else "column id has the wrong type"
    assert done.stdout.startswith(expected), done.stderr


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    state = lists([1, 2, 3], [4, 5, 6])
    return parquet(
        tmp_path_factory.mktemp("valid"), id=pa.array([1, 2], pa.uint64()), weights=GOOD, state=state
    )


def test_weights_that_only_the_row_groups_name_are_missing(valid: Path) -> None:
    """Otherwise the states would be read in their place."""
    path = valid.with_name("renamed.parquet")
    path.write_bytes(valid.read_bytes().replace(b"weights", b"heights", 1))
    with pytest.raises(DataError, match="cannot be read: 'weights'"):
        read(path)


SIZES = "the metadata is damaged: Repetition level histogram size"


@pytest.mark.cluster
def test_damage_that_would_end_the_process_is_an_error(valid: Path) -> None:
    """A histogram of three sizes in place of two: pyarrow throws where nobody catches."""
    whole, path, said = valid.read_bytes(), valid.with_name("damaged.parquet"), set()
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    for at in range(footer, len(whole) - 8):
        if whole[at] == 0x26:  # a list of two int64, in Thrift's compact protocol
            longer = whole[footer:at] + b"\x36\x00" + whole[at + 1 : -8]
            path.write_bytes(whole[:footer] + longer + len(longer).to_bytes(4, "little") + b"PAR1")
            with pytest.raises(DataError, match="cannot be read: ") as caught:
                read(path)
            said.add(caught.value.what)
            if not THOROUGH and SIZES in caught.value.what:
                break
    assert any(SIZES in what for what in said), said


@settings(
    max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(st.data())
def test_changed_bytes_are_an_error_or_rows_that_fit(valid: Path, data: st.DataObject) -> None:
    whole = valid.read_bytes()
    changed = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(changed) - 1))
        new = data.draw(st.binary(max_size=4))
        changed[at : at + data.draw(st.sampled_from([len(new), 0, 7]))] = new
    path = valid.with_name("changed.parquet")
    path.write_bytes(bytes(changed))
    try:
        ids, weights, state = read(path)
    except DataError:
        return
    assert weights.shape == (len(ids), 2)
    assert np.isfinite(weights).all()
    assert state is None or state.shape == (len(ids), 3)
