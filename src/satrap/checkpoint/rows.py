"""Rows of a table as an Arrow IPC file: one record batch per chunk."""

import dataclasses
import itertools
import json
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from satrap.checkpoint.files.storage import BlockWriter
from satrap.store import RowChunk

_KINDS = {"ids": (("<u8",), True), "weights": (("<f4", "<f2"), False), "state": (("<f4",), False)}
"""Allowed types of each array of a chunk, and whether it has one dimension."""


def write_rows(writer: BlockWriter, first: RowChunk, others: Iterable[RowChunk]) -> int:
    """Write the chunks of one table; return the number of rows.

    Every array of a chunk becomes a column; a matrix becomes a fixed-size list. Columns of width 0 are
    omitted; the reader restores them from the widths in the file's metadata. Weights may be float16; the
    reader widens them.
    """
    schema = _schema(first)
    rows = 0
    with pa.ipc.new_stream(pa.PythonFile(writer, mode="w"), schema) as stream:
        for chunk in itertools.chain([first], others):
            stream.write_batch(_record_batch(chunk, schema))
            rows += len(chunk.ids)
    return rows


def read_rows(source: Any, table: str) -> Iterator[RowChunk]:
    """Yield the chunks of an open file that `write_rows` wrote for a table.

    For other files, raises pyarrow.ArrowException, OSError, ValueError, TypeError, KeyError, AttributeError.
    """
    with pa.ipc.open_stream(source) as stream:
        metadata = stream.schema.metadata
        layout: dict[str, tuple[str, int]] = json.loads(metadata[b"layout"])
        valid = layout.keys() == _KINDS.keys() and all(
            kind in _KINDS[name][0] and (width < 0) == _KINDS[name][1]
            for name, (kind, width) in layout.items()
        )
        if metadata[b"table"].decode() != table or not valid:
            raise ValueError(f"the file does not hold rows of table {table!r}")
        for batch in stream:
            batch.validate()  # otherwise offsets could point beyond the buffer
            yield _chunk(table, layout, batch)


def _arrays(chunk: RowChunk) -> dict[str, npt.NDArray[Any]]:
    values = ((f.name, getattr(chunk, f.name)) for f in dataclasses.fields(chunk))
    return {name: value for name, value in values if isinstance(value, np.ndarray)}


def _schema(chunk: RowChunk) -> pa.Schema:
    fields, layout = [], {}
    for name, array in _arrays(chunk).items():
        width = array.shape[1] if array.ndim == 2 else -1
        layout[name] = (array.dtype.str, width)
        kind = pa.from_numpy_dtype(array.dtype)
        if width != 0:
            fields.append(pa.field(name, kind if width < 0 else pa.list_(kind, width)))
    return pa.schema(fields, metadata={"table": chunk.table, "layout": json.dumps(layout)})


def _record_batch(chunk: RowChunk, schema: pa.Schema) -> pa.RecordBatch:
    arrays = _arrays(chunk)
    columns = []
    for field in schema:
        flat = pa.array(np.ascontiguousarray(arrays[field.name]).reshape(-1))
        if pa.types.is_fixed_size_list(field.type):
            flat = pa.FixedSizeListArray.from_arrays(flat, field.type.list_size)
        columns.append(flat)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _chunk(table: str, layout: dict[str, tuple[str, int]], batch: pa.RecordBatch) -> RowChunk:
    columns: dict[str, npt.NDArray[Any]] = {}
    for name, (dtype, width) in layout.items():
        if width == 0:
            columns[name] = np.empty((len(batch), 0), dtype=dtype)
            continue
        column = batch.column(name)
        columns[name] = column.to_numpy() if width < 0 else column.flatten().to_numpy().reshape(-1, width)
        if columns[name].dtype != np.dtype(dtype) or len(columns[name]) != len(batch):
            raise ValueError(f"column {name} does not match the layout in the file's metadata")
    return RowChunk(
        table, columns["ids"], columns["weights"].astype(np.float32, copy=False), columns["state"]
    )
