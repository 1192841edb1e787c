"""Files with embedding rows: Parquet, NumPy or safetensors; unsuitable files are rejected before reading.

In checks, `before` is the number of earlier rows in the file.
"""

import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from safetensors import SafetensorError, safe_open

from satrap.data.encode.hashing import hash_ids
from satrap.data.formats.files import check_regular
from satrap.errors import DataError

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.uint64]

READ_ROWS = 16384
"""Rows decoded at once from a Parquet file."""
ID_BYTES = 4096
"""Largest average size in bytes of an id in a Parquet file."""
_LOOK = """
import sys
from pyarrow.parquet import read_metadata
found = read_metadata(sys.argv[1])
for group in map(found.row_group, range(found.num_row_groups)):
    for number in range(group.num_columns):
        group.column(number)
"""


@dataclass(frozen=True, slots=True)
class RowFileSpec:
    """Requirements on the rows of a table.

    `states` maps each allowed number of weights per row to the number of state values of such a row; None:
    ignore the state in the file.
    """

    table: str
    states: Mapping[int, int | None]
    salt: int


class FileRows(NamedTuple):
    """Some rows of a file: ids uint64[n], weights float32[n, dim], state float32[n, k] or None."""

    ids: Ids
    weights: Floats
    state: Floats | None = None


def read_rows(
    path: Path, wanted: RowFileSpec, *, tensor: str | None = None, raw: bool | None = False
) -> Iterator[FileRows]:
    """Yield the rows of a file in pieces.

    - Parquet with columns id, weights and optionally state.
    - NumPy's .npz with the arrays id and weights, [n] and [n, dim].
    - safetensors with a matrix such as the weight of an `nn.Embedding`, by default the only one. Its row
      numbers are hashed like integers in the data.

    Args:
        path: the file; its suffix selects the format, and any other suffix means Parquet.
        wanted: requirements on the rows.
        tensor: name of a matrix in a safetensors file.
        raw: whether ids in a Parquet file are data values to be hashed; None: yes, unless
            `satrap checkpoint export` wrote the file. Ids in .npz files are always hashed.

    Raises:
        DataError: the file is unreadable or does not fit; after the last piece, an id occurs twice.
    """
    if not path.exists():
        raise DataError(
            "the file does not exist", where=str(path), fix=f"check the file of table {wanted.table!r}"
        )
    check_regular(path)
    match path.suffix:
        case ".safetensors":
            parts: Iterator[FileRows] = iter([FileRows(*_read_matrix(path, wanted, tensor))])
        case ".npz":
            parts = iter([_read_arrays(path, wanted)])
        case _:
            parts = _read_parquet(path, wanted, raw)
    ids, count = [np.empty(0, np.uint64)], 0
    for part in parts:
        _check_distinct(part.ids, path, count)
        count += len(part.ids)
        ids.append(part.ids)
        yield part
    _check_distinct(np.concatenate(ids), path)


def is_export(path: Path) -> bool:
    """Return whether `satrap checkpoint export` wrote a file that `read_rows` has read successfully."""
    if path.suffix in (".safetensors", ".npz"):
        return False
    with _reading(path):
        return _exported(pq.read_schema(path))


def _exported(schema: pa.Schema) -> bool:
    return b"table" in (schema.metadata or {}) and schema.field("id").type == pa.uint64()


def _check_distinct(ids: Ids, path: Path, before: int = 0) -> None:
    if not len(ids):
        raise DataError("the file has no rows", where=str(path))
    order = np.argsort(ids, kind="stable")
    equal = np.flatnonzero(ids[order][1:] == ids[order][:-1])
    if len(equal):
        first, second = (before + int(row) + 1 for row in order[equal[0] : equal[0] + 2])
        raise DataError(
            "an id occurs twice", where=f"{path}, rows {first} and {second}", fix="keep one row per id"
        )


def _read_arrays(path: Path, wanted: RowFileSpec) -> FileRows:
    """Return the rows of a NumPy file; see `read_rows`."""
    try:
        with np.load(path, allow_pickle=False) as file:
            ids, weights = file["id"], file["weights"]
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(
            f"the file cannot be read: {error}",
            where=str(path),
            fix="write it with numpy.savez(file, id=ids, weights=vectors)",
        ) from error
    if ids.ndim != 1 or weights.ndim != 2 or len(ids) != len(weights) or weights.dtype.kind != "f":
        raise DataError(
            f"id is {ids.dtype}{list(ids.shape)} and weights {weights.dtype}{list(weights.shape)}",
            where=str(path),
            fix="give id as [n] and weights as floating point numbers [n, dim]",
        )
    _check_width(weights.shape[1], wanted, path)
    with np.errstate(over="ignore"):  # as in Parquet files
        weights32 = np.ascontiguousarray(weights, np.float32)
    _check_values(weights32, path)
    return FileRows(hash_ids(ids, wanted.salt), weights32)


def _read_matrix(path: Path, wanted: RowFileSpec, tensor: str | None = None) -> tuple[Ids, Floats]:
    """Return (ids, weights) of a safetensors matrix such as the weight of an `nn.Embedding`.

    Row n gets the id of integer n. By default the file must have exactly one matrix.
    """
    try:
        with safe_open(path, framework="pt") as file:
            shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
            names = [tensor] if tensor else [name for name, shape in shapes.items() if len(shape) == 2]
            if len(names) != 1:
                raise DataError(
                    f"the file holds {len(names)} matrices",
                    where=str(path),
                    fix="select one with --tensor NAME",
                )
            matrix = file.get_slice(names[0])
            if len(matrix.get_shape()) != 2 or "F" not in matrix.get_dtype():
                raise DataError(
                    f"{names[0]!r} is not a matrix of floating point numbers",
                    where=str(path),
                    fix="select another tensor",
                )
            _check_width(matrix.get_shape()[1], wanted, path)
            weights: Floats = file.get_tensor(names[0]).to(torch.float32).contiguous().numpy()
    except (OSError, SafetensorError) as error:
        raise DataError(f"the file cannot be read: {error}", where=str(path)) from error
    _check_values(weights, path)
    return hash_ids(np.arange(len(weights), dtype=np.int64), wanted.salt), weights


def _read_parquet(path: Path, wanted: RowFileSpec, raw: bool | None) -> Iterator[FileRows]:
    """Yield the rows of a Parquet file; see `read_rows`.

    Even for a file that does not fit, at most the declared number of rows is decoded.
    """
    with _reading(path):
        _try_metadata(path)
    with _reading(path), pq.ParquetFile(path, pre_buffer=False) as file:
        hashes = not _exported(file.schema_arrow) if raw is None else raw
        keeps_state = _check_columns(file, path, wanted, raw=hashes)
        names = ["id", "weights", *(["state"] if keeps_state else [])]
        first = 0
        for batch in file.iter_batches(READ_ROWS, columns=names, use_threads=False):
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
            ids = _ids(columns["id"], wanted.salt, hashes)
            numbers = [_floats(columns[name]) for name in names[1:]]
            for values in numbers:
                _check_values(values, path, first)
            first += len(ids)
            yield FileRows(ids, *numbers)


def _try_metadata(path: Path) -> None:
    """Raise a `ValueError` for damaged metadata that would make pyarrow end this process.

    pyarrow does not catch its own C++ exceptions while reading column chunk metadata, so a subprocess reads
    it first. Errors that the subprocess can report are left to the actual reading.
    """
    done = subprocess.run([sys.executable, "-c", _LOOK, str(path)], capture_output=True, text=True)
    if done.returncode < 0:
        reasons = [line.partition("what():")[2] for line in done.stderr.splitlines() if "what():" in line]
        raise ValueError(" ".join(["the metadata is damaged:", *(text.strip() for text in reasons)]))


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, KeyError, ValueError, pa.ArrowException) as error:
        raise DataError(
            f"the file cannot be read: {(str(error).splitlines() or [type(error).__name__])[0]}",
            where=str(path),
            fix="give Parquet with the columns id and weights, as satrap checkpoint export writes it",
        ) from error


def _check_columns(file: pq.ParquetFile, path: Path, wanted: RowFileSpec, *, raw: bool) -> bool:
    """Raise unless the columns have the right types and the required number of values.

    Return whether the file has state to be read.
    """
    kinds = {field.name: field.type for field in file.schema_arrow}
    rows, values, id_bytes = file.metadata.num_rows, dict.fromkeys(kinds, 0), 0
    for group in map(file.metadata.row_group, range(file.metadata.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            name = column.path_in_schema.split(".")[0]
            values[name] = values.get(name, 0) + column.num_values
            id_bytes += column.total_uncompressed_size if name == "id" else 0
    ignored = all(state is None for state in wanted.states.values())
    needed = [name for name in ("weights", "state") if name == "weights" or (name in kinds and not ignored)]
    wrong = [name for name in needed if not _is_floats(kinds[name])]
    kind = kinds["id"]
    fits = not pa.types.is_nested(kind) if raw else pa.types.is_integer(kind)
    if not fits or id_bytes > ID_BYTES * (rows + ID_BYTES):
        wrong.append("id")
    if wrong:
        raise DataError(
            f"column {wrong[0]} has the wrong type: {kinds[wrong[0]]}",
            where=str(path),
            fix="give id as a whole number (with --raw also text), weights and state as lists of floats",
        )
    if not rows:
        raise DataError("the file has no rows", where=str(path))
    if values["weights"] % rows:
        raise DataError("the rows do not all have the same number of weights", where=str(path))
    width = values["weights"] // rows
    _check_width(width, wanted, path)
    numbers = wanted.states[width]
    if "state" in needed and numbers is not None and values["state"] != rows * numbers:
        raise DataError(
            f"the rows have {values['state'] / rows:g} state values, but the optimizer needs {numbers}",
            where=str(path),
        )
    return "state" in needed


def _is_floats(kind: pa.DataType) -> bool:
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return bool(lists and pa.types.is_floating(kind.value_type))


def _check_width(width: int, wanted: RowFileSpec, path: Path) -> None:
    if width not in wanted.states:
        has = " or ".join(map(str, sorted(wanted.states)))
        raise DataError(
            f"the rows have {width} weights, but table {wanted.table!r} has {has}",
            where=str(path),
            fix="set the dim of the table's features to the width of the rows",
        )


def _ids(column: pa.Array, salt: int, raw: bool) -> Ids:
    if column.null_count:
        raise ValueError("a row has no id")
    return hash_ids(column, salt) if raw else column.cast(pa.uint64()).to_numpy(zero_copy_only=False)


def _floats(column: pa.Array) -> Floats:
    lengths = pc.min_max(pc.list_value_length(column)).as_py()
    if column.null_count or lengths["min"] != lengths["max"]:
        raise ValueError("the rows do not all have the same number of values")
    with np.errstate(over="ignore"):  # overflowing values become infinite, and are then rejected
        flat = column.flatten().to_numpy(zero_copy_only=False).astype(np.float32)
    return np.ascontiguousarray(flat.reshape(len(column), lengths["min"]))


def _check_values(values: Floats, path: Path, before: int = 0) -> None:
    finite = np.isfinite(values).all(axis=1)
    if not finite.all():
        raise DataError(
            "a value is missing, NaN or infinite",
            where=f"{path}, row {before + int(np.argmin(finite)) + 1}",
            why="the row would make the outputs of every batch with this id invalid",
            fix="remove such rows",
        )
