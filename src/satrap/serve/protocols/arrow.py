"""Requests and answers as Arrow streams: one row per item."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt
import pyarrow as pa

from satrap.data.formats.columns import as_array
from satrap.serve.http.errors import RequestError
from satrap.serve.http.request import ScoreRequest
from satrap.serve.protocols.flatbuffer import is_compressed
from satrap.serve.scoring.columns import check_count, check_names
from satrap.serve.scoring.scorer import ScoredRequest
from satrap.serve.scoring.signature import Signature

KIND = "application/vnd.apache.arrow.stream"

_WRONG = (pa.ArrowException, ValueError, OSError, TypeError, KeyError, MemoryError)
"""Errors that pyarrow raises for bytes that are not a stream."""


def read(body: bytes, model: Signature, *, max_items: int) -> ScoreRequest:
    """Return the rows of a request: an Arrow stream with the model's columns.

    Raises:
        RequestError: the body is not an Arrow stream, or is compressed; the columns are not the model's;
            rows are missing, or too many.
    """
    try:
        # A few compressed bytes may expand to gigabytes, so compressed streams are rejected unread.
        messages = pa.ipc.MessageReader.open_stream(body)
        compressed = any(is_compressed(message.metadata) for message in _every(messages))
        if not compressed:
            with pa.ipc.open_stream(body) as stream:
                batches = list(stream)
                table = pa.Table.from_batches(batches, stream.schema)
            table.validate(full=True)
    except _WRONG as error:
        raise RequestError(
            400,
            f"the body is not an Arrow stream: {str(error).splitlines()[0]}",
            fix="write the body with pyarrow.ipc.new_stream, not as an Arrow file",
        ) from error
    if compressed:
        raise RequestError(
            422,
            "the Arrow stream is compressed",
            why="the size in memory of a compressed stream is unknown until it is decompressed",
            fix="send the stream uncompressed",
        )
    check_names(model, table.column_names)
    if len(table.column_names) > len(model.columns):
        raise RequestError(422, "a column name is used twice", fix="give each column a unique name")
    check_count(table.num_rows, max_items)
    table = table.combine_chunks()
    return ScoreRequest(table.num_rows, {}, {name: as_array(table.column(name)) for name in model.columns})


def _every(messages: Any) -> Any:
    """Yield the messages of a stream."""
    while True:
        try:
            yield messages.read_next_message()
        except StopIteration:
            return


def write(answer: ScoredRequest) -> bytes:
    """Return the scores as a stream with one column per prediction; the schema's metadata has the step."""
    columns = {
        name: pa.array(values)
        if values.ndim == 1
        else pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
        for name, values in answer.by_output().items()
    }
    metadata = {"model": answer.model.name, "step": str(answer.step)}
    return _packed(pa.table(columns).replace_schema_metadata(metadata))


def pack(request: ScoreRequest, columns: Sequence[str]) -> bytes:
    """Return the given columns of a request as a stream."""
    return _packed(request.table(columns))


def scores_in(body: bytes) -> dict[str, npt.NDArray[Any]]:
    """Return the scores of an answer, by prediction."""
    with pa.ipc.open_stream(body) as stream:
        table = stream.read_all()
    return {name: table.column(name).to_numpy() for name in table.column_names}


def _packed(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    content: bytes = sink.getvalue().to_pybytes()
    return content
