"""Writes a safetensors file a few rows of a tensor at a time."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class TensorBlock:
    """Some rows of a tensor, or a whole scalar: start position and shape."""

    name: str
    start: list[int]
    size: list[int]


@dataclass(frozen=True, slots=True)
class FileLayout:
    """The layout of a file.

    Args:
        head: the first bytes of the file.
        batches: the blocks that follow, a few megabytes per batch; a batch has at most one block per tensor.
    """

    head: bytes
    batches: list[list[TensorBlock]]

    @classmethod
    def of(
        cls, tensors: Mapping[str, tuple[torch.dtype, Sequence[int]]], metadata: Mapping[str, str]
    ) -> FileLayout:
        """Return the layout that safetensors gives to a file.

        Args:
            tensors: name -> (dtype, shape).
            metadata: of the file, with at most one key, because the order of keys differs from safetensors.
        """
        header, at = dict[str, Any](), 0
        batches, room = list[list[TensorBlock]](), 0
        types = list(NAMES)
        for name in sorted(tensors, key=lambda name: (types.index(tensors[name][0]), name)):
            dtype, shape = tensors[name]
            end = at + math.prod(shape) * dtype.itemsize
            header[name] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [at, end]}
            at = end
            for block in _blocks(name, dtype, shape):
                size = math.prod(block.size) * dtype.itemsize
                if size > room:
                    batches.append([])
                    room = READ
                batches[-1].append(block)
                room -= size
        head = {"__metadata__": dict(metadata)} if metadata else {}
        text = json.dumps(head | header, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)
        return cls(len(text).to_bytes(8, "little") + text, batches)


def _blocks(name: str, dtype: torch.dtype, shape: Sequence[int]) -> Iterator[TensorBlock]:
    if not math.prod(shape):
        return
    if not shape:
        yield TensorBlock(name, [], [])
        return
    rows = max(1, READ // (math.prod(shape[1:]) * dtype.itemsize))
    for begin in range(0, shape[0], rows):
        count = min(rows, shape[0] - begin)
        yield TensorBlock(name, [begin] + [0] * (len(shape) - 1), [count, *shape[1:]])


def streamed(tensors: Mapping[str, Any], metadata: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of one safetensors file; only a few rows of saved tensors are in memory.

    Args:
        tensors: name -> `Tensor` on any device or `SavedTensor`; they may share memory.
        metadata: of the file, see `FileLayout.of`.
    """
    layout = FileLayout.of({name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}, metadata)
    yield layout.head
    for batch in layout.batches:
        for block in batch:
            tensor = tensors[block.name]
            if not isinstance(tensor, Tensor):
                tensor = tensor.read(block.start, block.size)
            elif block.size:
                tensor = tensor[block.start[0] : block.start[0] + block.size[0]]
            yield bytes_of(tensor)


def bytes_of(tensor: Tensor) -> memoryview:
    """Return the bytes of a tensor, in row-major order."""
    flat = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
    return memoryview(flat.numpy())  # type: ignore[arg-type]
