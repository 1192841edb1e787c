"""The Open Inference Protocol, version 2, over REST, with its extension for binary tensors.

Each column of the model is an input, and each prediction an output. An input's first dimension is the number
of items. If other inputs are longer, an input with one item is context: its value applies to all items.

Specification: kserve/open-inference-protocol, `inference_rest.yaml`, and Triton's `extension_binary_data.md`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from satrap.errors import SatrapError, did_you_mean
from satrap.serve.http.errors import RequestError
from satrap.serve.http.request import ScoreRequest
from satrap.serve.protocols import json
from satrap.serve.scoring.columns import check_count, check_names
from satrap.serve.scoring.scorer import ScoredRequest
from satrap.serve.scoring.signature import Signature

HEADER_LENGTH = "Inference-Header-Content-Length"
"""HTTP header: length of the JSON part of a body with binary tensors after it."""
BINARY_KIND = "application/octet-stream"
DIMENSIONS = 2
"""Maximum dimensions of an input: items, values of an item."""

_TYPES = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
}
_TEXT = "BYTES"
_FLOATS = {4: "FP32", 8: "FP64"}


@dataclass(frozen=True, slots=True)
class OutputRequest:
    """The requested form of an answer.

    Args:
        id: id of the request, repeated in the answer.
        outputs: name of each requested output -> whether it is binary.
    """

    id: str | None
    outputs: Mapping[str, bool]


def server_metadata(version: str) -> dict[str, Any]:
    """Return the answer to GET /v2."""
    return {"name": "satrap", "version": version, "extensions": ["binary_tensor_data"]}


def model_metadata(model: Signature, step: int) -> dict[str, Any]:
    """Return the answer to GET /v2/models/NAME; requests may also send ids as integers."""
    return {
        "name": model.name,
        "versions": [str(step)],
        "platform": "satrap",
        "inputs": [
            {
                "name": name,
                "datatype": "FP64" if name in model.numbers else _TEXT,
                "shape": [-1, -1] if name in model.lists else [-1],
            }
            for name in model.columns
        ],
        "outputs": [
            {
                "name": name,
                "datatype": _FLOATS[model.score_bytes],
                "shape": [-1, -1] if model.vectors else [-1],
            }
            for name in model.outputs
        ],
    }


def read(
    body: bytes, header_length: str | None, model: Signature, *, max_items: int
) -> tuple[ScoreRequest, OutputRequest]:
    """Return the rows of a request, and the requested form of its answer.

    Args:
        body: body of the request.
        header_length: value of the header `HEADER_LENGTH`; None: the whole body is JSON.
        model: the requested model.
        max_items: maximum number of items.

    Raises:
        RequestError, DataError: the body is not a request of this protocol, or its columns are not the
            model's.
    """
    text, binary = _parts(body, header_length)
    request = json.loads(text)
    inputs = request.get("inputs") if isinstance(request, dict) else None
    if not isinstance(inputs, list) or not all(isinstance(tensor, dict) for tensor in inputs):
        raise _malformed("the body has no list of inputs", fix="send inputs as a list of tensors")
    arrays: dict[str, pa.Array] = {}
    for tensor in inputs:
        name = tensor.get("name")
        if not isinstance(name, str) or name in arrays:
            raise _malformed(
                f"the input name {str(name)[:60]!r} is not text, or is used twice",
                fix="give each input a unique name",
            )
        arrays[name], binary = _array(tensor, name, binary, as_lists=name in model.lists)
    if len(binary):
        raise _malformed(
            f"{len(binary):,} bytes follow the last tensor",
            HEADER_LENGTH,
            "check the header and each binary_data_size",
        )
    check_names(model, list(arrays))
    count = max(len(array) for array in arrays.values())
    check_count(count if all(len(array) for array in arrays.values()) else 0, max_items)
    columns = {name: _of_all(name, arrays[name], count) for name in model.columns}
    return ScoreRequest(count, {}, columns), _wanted(request, model)


def _parts(body: bytes, header_length: str | None) -> tuple[bytes, memoryview]:
    if header_length is None:
        return body, memoryview(b"")
    length = int(header_length) if header_length.isascii() and header_length.isdigit() else -1
    if not 0 <= length <= len(body):
        raise _malformed(
            f"{header_length[:40]!r} is not a length within the body",
            HEADER_LENGTH,
            f"give the length of the JSON part, 0 to {len(body)}",
        )
    return body[:length], memoryview(body)[length:]


def _of_all(name: str, array: pa.Array, count: int) -> pa.Array:
    """Return a column with one value per item."""
    if len(array) == count:
        return array
    if len(array) == 1:
        return pa.repeat(array[0], count)
    raise _malformed(
        f"the input has {len(array):,} items, and another input has {count:,}",
        name,
        "give each input the same number of items, or one item for a context",
    )


def _array(
    tensor: Mapping[str, Any], name: str, binary: memoryview, *, as_lists: bool
) -> tuple[pa.Array, memoryview]:
    """Return the column of a tensor, and the rest of the binary part."""
    shape, kind = tensor.get("shape"), tensor.get("datatype")
    if not isinstance(shape, list) or not 1 <= len(shape) <= DIMENSIONS or not all(map(_is_size, shape)):
        raise _malformed(
            f"shape {str(shape)[:60]} is not valid",
            name,
            f"give 1 or {DIMENSIONS} dimensions: items, values of an item",
        )
    if kind != _TEXT and kind not in _TYPES:
        raise _malformed(
            f"datatype {str(kind)[:40]!r} is unknown",
            name,
            f"{did_you_mean(kind, [*_TYPES, _TEXT])}use one of {', '.join([*_TYPES, _TEXT])}",
        )
    size = (tensor.get("parameters") or {}).get("binary_data_size")
    if size is None:
        values = _from_json(tensor.get("data"), kind, name)
    elif not _is_size(size) or size > len(binary):
        raise _malformed(
            f"binary_data_size {str(size)[:40]} is not a size within the {len(binary):,} bytes left",
            name,
        )
    else:
        values, binary = _from_binary(binary[:size], kind, name), binary[size:]
    if len(values) != prod(shape):
        raise _malformed(
            f"the data has {len(values):,} values, and shape {shape} needs {prod(shape):,}", name
        )
    width = shape[1] if len(shape) == DIMENSIONS else 1
    if len(shape) == DIMENSIONS and (width != 1 or as_lists):
        offsets = pa.array(np.arange(shape[0] + 1) * width, pa.int64())
        return pa.LargeListArray.from_arrays(offsets, values), binary
    return values, binary


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _from_json(data: Any, kind: str, name: str) -> pa.Array:
    values = _flat(data)
    try:
        if kind == _TEXT:
            return pa.array(values, pa.string())
        return pa.array(values, pa.from_numpy_dtype(_TYPES[kind]))
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise _malformed(
            f"the data is not {kind}: {str(error).splitlines()[0]}", name, "correct the data or its datatype"
        ) from error


def _flat(data: Any) -> list[Any]:
    """Return the values of a tensor; `data` may be nested or flat."""
    if not isinstance(data, list):
        return [data]
    if not any(isinstance(row, list) for row in data):
        return data
    return [value for row in data for value in (row if isinstance(row, list) else [row])]


def _from_binary(data: memoryview, kind: str, name: str) -> pa.Array:
    if kind != _TEXT:
        dtype = np.dtype(_TYPES[kind])
        if len(data) % dtype.itemsize:
            raise _malformed(
                f"{len(data):,} bytes are not a multiple of {dtype.itemsize}, the size of {kind}", name
            )
        return pa.array(np.frombuffer(data, dtype.newbyteorder("<")).astype(dtype))
    texts: list[bytes] = []
    at = 0
    while at < len(data):
        if at + 4 > len(data):
            raise _malformed("the length of the last text is cut short", name)
        length = int(struct.unpack_from("<I", data, at)[0])
        texts.append(bytes(data[at + 4 : at + 4 + length]))
        at += 4 + length
    if at != len(data):
        raise _malformed("the last text is cut short", name)
    return pa.array(texts, pa.large_binary())


def _wanted(request: Mapping[str, Any], model: Signature) -> OutputRequest:
    binary = bool((request.get("parameters") or {}).get("binary_data_output"))
    requested = request.get("outputs") or [{"name": name} for name in model.outputs]
    outputs: dict[str, bool] = {}
    for output in requested if isinstance(requested, list) else [requested]:
        name = output.get("name") if isinstance(output, dict) else None
        if name not in model.outputs:
            raise _malformed(
                f"output {str(name)[:60]!r} is unknown",
                "outputs",
                f"use one of {', '.join(model.outputs)}",
            )
        outputs[str(name)] = bool((output.get("parameters") or {}).get("binary_data", binary))
    id_ = request.get("id")
    return OutputRequest(id_ if isinstance(id_, str) else None, outputs)


def write(answer: ScoredRequest, wanted: OutputRequest) -> tuple[bytes, int | None]:
    """Return the body of an answer, and the length of its JSON part if binary tensors follow."""
    values, binary, outputs = answer.by_output(), list[bytes](), list[dict[str, Any]]()
    for name, in_binary in wanted.outputs.items():
        scores = values[name]
        output: dict[str, Any] = {"name": name, "datatype": _FLOATS[scores.itemsize], "shape": scores.shape}
        if in_binary:
            binary.append(scores.tobytes())
            output["parameters"] = {"binary_data_size": scores.nbytes}
        else:
            output["data"] = scores.reshape(-1)
        outputs.append(output)
    head: dict[str, Any] = {
        "model_name": answer.model.name,
        "model_version": str(answer.step),
        "outputs": outputs,
    }
    if wanted.id is not None:
        head["id"] = wanted.id
    text = orjson.dumps(head, option=orjson.OPT_SERIALIZE_NUMPY)
    return b"".join([text, *binary]), len(text) if binary else None


def write_error(error: SatrapError) -> bytes:
    """Return the body of an error in this protocol, a single text."""
    return orjson.dumps({"error": str(error)})


def _malformed(what: str, where: str = "inputs", fix: str = "") -> RequestError:
    return RequestError(400, what, where=where, fix=fix)
