"""Row files of other programs, Parquet or safetensors; unsuitable files are refused before they are read."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from safetensors import SafetensorError, safe_open

from satrap.data.files import check_regular
from satrap.data.hashing import hash_ids
from satrap.errors import DataError

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.uint64]

READ_ROWS = 16384
"""Rows of a Parquet file decoded at once."""
ID_BYTES = 4096
"""Largest average size in bytes of an id of a Parquet file."""
_LOOK = """
import sys
from pyarrow.parquet import read_metadata
found = read_metadata(sys.argv[1])
for group in map(found.row_group, range(found.num_row_groups)):
    for number in range(group.num_columns):
        group.column(number)
"""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the rows of a table must look like.

    `states` maps the numbers of weights that a row may have to the number of state values it then has.
    """

    table: str
    states: Mapping[int, int]
    salt: int


def read_matrix(path: Path, wanted: Wanted, tensor: str | None = None) -> tuple[Ids, Floats]:
    """Return (ids, weights) of a safetensors matrix such as the weight of an `nn.Embedding`.

    Row n gets the id of n. The default is the only matrix in the file.
    """
    check_regular(path)
    try:
        with safe_open(path, framework="pt") as file:
            shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
            names = [tensor] if tensor else [name for name, shape in shapes.items() if len(shape) == 2]
            if len(names) != 1:
                raise DataError(
                    f"the file holds {len(names)} matrices", where=str(path), fix="name one: --tensor NAME"
                )
            found = file.get_slice(names[0])
            if len(found.get_shape()) != 2 or "F" not in found.get_dtype():
                raise DataError(
                    f"{names[0]!r} is no matrix of floating point numbers",
                    where=str(path),
                    fix="name another",
                )
            _check_width(found.get_shape()[1], wanted, path)
            weights: Floats = file.get_tensor(names[0]).to(torch.float32).contiguous().numpy()
    except (OSError, SafetensorError) as error:
        raise DataError(f"the file cannot be read: {error}", where=str(path)) from error
    _check_values(weights, path)
    return hash_ids(np.arange(len(weights), dtype=np.int64), wanted.salt), weights


def read_parquet(path: Path, wanted: Wanted, *, raw: bool = False) -> tuple[Ids, Floats, Floats | None]:
    """Return (ids, weights, state or None) of a Parquet file with these columns.

    With `raw`, ids are values as in the data, and are hashed. If the file does not fit, no more rows than it
    declares are decoded.
    """
    check_regular(path)
    with _reading(path):
        _try_metadata(path)
    with _reading(path), pq.ParquetFile(path, pre_buffer=False) as file:
        _check_columns(file, path, wanted, raw=raw)
        names = [name for name in ("id", "weights", "state") if name in file.schema_arrow.names]
        parts = [
            (_ids(batch.column(0), wanted.salt, raw), *map(_floats, batch.columns[1:]))
            for batch in file.iter_batches(READ_ROWS, columns=names, use_threads=False)
        ]
        ids, weights, *state = (np.concatenate(column) for column in zip(*parts, strict=True))
    _check_values(weights, path)
    if state:
        _check_values(state[0], path)
    return ids, weights, state[0] if state else None


def _try_metadata(path: Path) -> None:
    """Raise a `ValueError` for damaged metadata at which pyarrow would end this process.

    It does not catch its own C++ exceptions when it looks at a column chunk, so another process looks first.
    Whatever that one can report, reading will.
    """
    done = subprocess.run([sys.executable, "-c", _LOOK, str(path)], capture_output=True, text=True)
    if done.returncode < 0:
        said = [line.partition("what():")[2] for line in done.stderr.splitlines() if "what():" in line]
        raise ValueError(" ".join(["its metadata is damaged:", *(text.strip() for text in said)]))


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


def _check_columns(file: pq.ParquetFile, path: Path, wanted: Wanted, *, raw: bool) -> None:
    """Raise unless the columns have the right types, and as many values as the rows need."""
    kinds = {field.name: field.type for field in file.schema_arrow}
    rows, values, id_bytes = file.metadata.num_rows, dict.fromkeys(kinds, 0), 0
    for group in map(file.metadata.row_group, range(file.metadata.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            name = column.path_in_schema.split(".")[0]
            values[name] = values.get(name, 0) + column.num_values
            id_bytes += column.total_uncompressed_size if name == "id" else 0
    needed = [name for name in ("weights", "state") if name == "weights" or name in kinds]
    wrong = [name for name in needed if not _is_floats(kinds[name])]
    kind = kinds["id"]
    fits = not pa.types.is_nested(kind) if raw else pa.types.is_integer(kind)
    if not fits or id_bytes > ID_BYTES * (rows + ID_BYTES):
        wrong.append("id")
    if wrong:
        raise DataError(
            f"column {wrong[0]} has values of another kind: {kinds[wrong[0]]}",
            where=str(path),
            fix="id is to be a whole number (with --raw also text), weights and state lists of float",
        )
    if not rows:
        raise DataError("the file has no rows", where=str(path))
    if values["weights"] % rows:
        raise DataError("the rows do not all have the same number of weights", where=str(path))
    width = values["weights"] // rows
    _check_width(width, wanted, path)
    if "state" in kinds and values["state"] != rows * wanted.states[width]:
        raise DataError(
            f"the rows have {values['state'] / rows:g} values of state, "
            f"the optimizer has {wanted.states[width]}",
            where=str(path),
        )


def _is_floats(kind: pa.DataType) -> bool:
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return bool(lists and pa.types.is_floating(kind.value_type))


def _check_width(width: int, wanted: Wanted, path: Path) -> None:
    if width not in wanted.states:
        has = " or ".join(map(str, sorted(wanted.states)))
        raise DataError(f"the rows have {width} weights, table {wanted.table!r} has {has}", where=str(path))


def _ids(column: pa.Array, salt: int, raw: bool) -> Ids:
    if column.null_count:
        raise ValueError("a row has no id")
    return hash_ids(column, salt) if raw else column.cast(pa.uint64()).to_numpy(zero_copy_only=False)


def _floats(column: pa.Array) -> Floats:
    lengths = pc.min_max(pc.list_value_length(column)).as_py()
    if column.null_count or lengths["min"] != lengths["max"]:
        raise ValueError("the rows do not all have the same number of values")
    with np.errstate(over="ignore"):  # values that do not fit become infinite, and are then refused
        flat = column.flatten().to_numpy(zero_copy_only=False).astype(np.float32)
    return np.ascontiguousarray(flat.reshape(len(column), lengths["min"]))


def _check_values(values: Floats, path: Path) -> None:
    finite = np.isfinite(values).all(axis=1)
    if not finite.all():
        raise DataError(
            "a value is missing, not a number or infinite",
            where=f"{path}, row {int(np.argmin(finite)) + 1}",
            why="the row would poison every batch that it is in",
            fix="remove such rows",
        )
