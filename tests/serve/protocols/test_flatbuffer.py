"""Whether the buffers of an Arrow message are compressed."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from satrap.serve.protocols.flatbuffer import is_compressed

TABLES = {
    "numbers": pa.table({"a": np.zeros(5000)}),
    "texts": pa.table({"a": ["x" * 50] * 500, "b": [[1, 2]] * 500}),
    "dictionary": pa.table({"a": pa.array(["x" * 50, "y"] * 500).dictionary_encode()}),
}


def messages(table: pa.Table, compression: str | None) -> list[bytes]:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    found = []
    while True:
        try:
            found.append(reader.read_next_message().metadata.to_pybytes())
        except StopIteration:
            return found


@pytest.mark.parametrize("name", TABLES)
def test_it_is_told_of_rows_and_dictionaries_but_not_of_schemas(name: str) -> None:
    for compression in ("lz4", "zstd"):
        schema, *others = map(is_compressed, messages(TABLES[name], compression))
        assert (schema, set(others)) == (False, {True})
    assert not any(map(is_compressed, messages(TABLES[name], None)))


@settings(deadline=None)
@given(st.data())
def test_damaged_messages_are_value_errors(data: st.DataObject) -> None:
    message = bytearray(data.draw(st.sampled_from(messages(TABLES["dictionary"], "lz4"))))
    for _ in range(data.draw(st.integers(1, 4))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    with suppress(ValueError):
        is_compressed(bytes(message[: data.draw(st.integers(0, len(message)))]))
