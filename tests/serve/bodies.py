"""Bodies of requests as Arrow streams and as tensors."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from tests.serve.requests import plain

ARROW = {"Content-Type": "application/vnd.apache.arrow.stream"}
INFER = "/v2/models/books/infer"


def stream(table: pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=25)
    return bytes(sink.getvalue())


def tensors(rows: pd.DataFrame) -> dict[str, tuple[str, list[int], list[Any]]]:
    """Return datatype, shape and values by column; lists have equal lengths here."""
    columns = plain(rows)
    count = len(rows)
    return {
        "user": ("BYTES", [count], [value or "" for value in columns["user"]]),
        "book": ("INT64", [count, 1], columns["book"]),
        "tags": ("INT32", [count, 2], [value for row in columns["tags"] for value in row]),
        "words": ("BYTES", [count], columns["words"]),
        "time": ("BYTES", [count], columns["time"]),
        "age": ("FP32", [count], columns["age"]),
        "price": ("FP64", [count], columns["price"]),
        "picture": ("FP64", [count, 3], [value for row in columns["picture"] for value in row]),
    }


NUMPY = {"INT64": "<i8", "INT32": "<i4", "FP32": "<f4", "FP64": "<f8"}


def binary(kind: str, values: list[Any]) -> bytes:
    if kind == "BYTES":
        texts = [value.encode() for value in values]
        return b"".join(struct.pack("<I", len(text)) + text for text in texts)
    return np.array(values, NUMPY[kind]).tobytes()


def binary_request(rows: pd.DataFrame, **more: Any) -> tuple[bytes, dict[str, str]]:
    inputs, data = [], []
    for name, (kind, shape, values) in tensors(rows).items():
        data.append(binary(kind, values))
        inputs.append(
            {
                "name": name,
                "datatype": kind,
                "shape": shape,
                "parameters": {"binary_data_size": len(data[-1])},
            }
        )
    head = json.dumps({"inputs": inputs, **more}).encode()
    return b"".join([head, *data]), {"Inference-Header-Content-Length": str(len(head))}
