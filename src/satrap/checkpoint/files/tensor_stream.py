"""Writes a safetensors file a few rows of a tensor at a time."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

READ = 1 << 24
"""Approximate bytes of tensors in memory at a time."""

DTYPES = {
    "U64": torch.uint64,
    "I64": torch.int64,
    "F64": torch.float64,
    "C64": torch.complex64,
    "F32": torch.float32,
    "U32": torch.uint32,
    "I32": torch.int32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "U16": torch.uint16,
    "I16": torch.int16,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""Name of a dtype in headers -> dtype, in the order in which safetensors writes tensors."""
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def streamed(tensors: Mapping[str, Any], metadata: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    """Yield the bytes that safetensors gives to a file; only a few rows of saved tensors are in memory.

    Args:
        tensors: name -> `Tensor` on any device or `SavedTensor`; they may share memory.
        metadata: of the file, with at most one key, because the order of keys differs from safetensors.
    """
    types, header, at = list(NAMES), dict[str, Any](), 0
    names = sorted(tensors, key=lambda name: (types.index(tensors[name].dtype), name))
    for name in names:
        dtype, shape = tensors[name].dtype, list(tensors[name].shape)
        end = at + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": NAMES[dtype], "shape": shape, "data_offsets": [at, end]}
        at = end
    head = {"__metadata__": dict(metadata)} if metadata else {}
    text = json.dumps(head | header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in names:
        yield from map(bytes_of, _blocks(tensors[name]))


def _blocks(tensor: Any) -> Iterator[Tensor]:
    """Yield the rows of a tensor, a few megabytes at a time."""
    here, shape = isinstance(tensor, Tensor), list(tensor.shape)
    if not shape:
        yield tensor if here else tensor.whole()
    elif math.prod(shape):
        rows = max(1, READ // (math.prod(shape[1:]) * tensor.dtype.itemsize))
        for begin in range(0, shape[0], rows):
            size = [min(rows, shape[0] - begin), *shape[1:]]
            start = [begin, *[0] * len(shape[1:])]
            yield tensor[begin : begin + rows] if here else tensor.read(start, size)


def bytes_of(tensor: Tensor) -> memoryview:
    """Return the bytes of a tensor, in row-major order."""
    flat = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
    return memoryview(flat.numpy())  # type: ignore[arg-type]
