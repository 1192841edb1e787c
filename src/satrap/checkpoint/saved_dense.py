"""The dense network in files, whole or in parts written by several processes, read in slices."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import IO, Any

import torch
from torch import Tensor

from satrap.checkpoint.dense import flat_optimizer, whole_optimizer
from satrap.checkpoint.files.storage import FileEntry, Storage, damaged
from satrap.checkpoint.files.tensor_stream import DTYPES, READ, streamed
from satrap.checkpoint.manifest import Manifest
from satrap.checkpoint.parts import write_file

MODEL, OPTIMIZER = "model.safetensors", "optimizer.safetensors"
"""Files of the whole network and of its optimizer."""

Region = tuple[Sequence[int], Sequence[int]]
"""Shape of a whole tensor, and the position in it where a part begins, by dimension."""

_FILE = re.compile(r"(model|optimizer)(\.part-\d{4,})?\.safetensors")


def _on_host(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True)


@dataclass(frozen=True, slots=True)
class DensePart:
    """One process's part of the network in a checkpoint.

    Args:
        weights: name -> tensor, a part or the whole.
        optimizer: `state_dict` of the optimizer, with base learning rates, numbered as in the whole network,
            with parts of tensors; empty if this process has none.
        regions: for each tensor that is a part, by name, or by `<number>.<key>` of the optimizer.
    """

    weights: Mapping[str, Tensor] = field(default_factory=dict)
    optimizer: Mapping[str, Any] = field(default_factory=dict)
    regions: Mapping[str, Region] = field(default_factory=dict)

    def only_weights(self) -> DensePart:
        """Return the part without optimizer state."""
        regions = {name: region for name, region in self.regions.items() if name in self.weights}
        return DensePart(self.weights, {}, regions)

    def copied(self, copy: Callable[[Tensor], Tensor] = _on_host) -> DensePart:
        """Return a copy without device tensors; `copy` copies a tensor, by default to host memory."""

        def copies(values: Mapping[Any, Any]) -> dict[Any, Any]:
            return {
                key: copy(value) if isinstance(value, Tensor) else deepcopy(value)
                for key, value in values.items()
            }

        optimizer = copies({key: value for key, value in self.optimizer.items() if key != "state"})
        if self.optimizer:
            optimizer["state"] = {number: copies(entry) for number, entry in self.optimizer["state"].items()}
        return DensePart(copies(self.weights), optimizer, self.regions)

    def files(self) -> dict[str, tuple[Mapping[str, Tensor], dict[str, str]]]:
        """Return tensors and metadata of the model and optimizer files, by the names of the whole files."""
        return {MODEL: (self.weights, {}), OPTIMIZER: flat_optimizer(self.optimizer)}

    def write(self, storage: Storage, folder: str, number: int) -> dict[str, FileEntry]:
        """Write the files of this part, which are named by its number; return name -> entry."""
        written = dict[str, FileEntry]()
        for whole, (tensors, metadata) in self.files().items():
            regions = {name: self.regions[name] for name in tensors if name in self.regions}
            data = streamed(tensors, {**metadata, "parts": json.dumps(regions)})
            name = whole.replace(".", f".part-{number:04d}.", 1)
            written[name] = write_file(storage, f"{folder}/{name}", data)
        return written


@dataclass(frozen=True, slots=True)
class _Part:
    file: str
    at: int  # its first byte in the file
    start: tuple[int, ...]
    size: tuple[int, ...]


@dataclass(slots=True)
class SavedTensor:
    """A tensor in the files of a checkpoint, not in memory."""

    name: str
    shape: torch.Size
    dtype: torch.dtype
    dense: SavedDense
    parts: list[_Part] = field(default_factory=list)

    def read(self, start: Sequence[int], size: Sequence[int]) -> Tensor:
        """Return a slice: `size` numbers from `start`, in each dimension.

        Raises:
            CheckpointError: a file is damaged.
        """
        result = torch.zeros(tuple(size), dtype=self.dtype)
        missing = result.numel()
        for part in self.parts:
            low = [max(a, b) for a, b in zip(start, part.start, strict=True)]
            high = [min(a + m, b + n) for a, m, b, n in zip(start, size, part.start, part.size, strict=True)]
            if all(a < b for a, b in zip(low, high, strict=True)):
                missing -= math.prod(b - a for a, b in zip(low, high, strict=True))
                self._copy(part, low, high, result, start)
        if missing:
            raise self.dense.wrong(f"parts of {self.name} are missing or duplicated")
        return result

    def _copy(
        self, part: _Part, low: Sequence[int], high: Sequence[int], found: Tensor, start: Sequence[int]
    ) -> None:
        """Copy the region between two corners of a part into a slice that begins at `start`."""
        row = math.prod(part.size[1:]) * self.dtype.itemsize
        first, end = (low[0], high[0]) if low else (0, 1)
        rows, above = max(1, READ // row), part.start[0] if low else 0
        inner = tuple(slice(a - b, c - b) for a, b, c in zip(low[1:], part.start[1:], high[1:], strict=True))
        outer = tuple(slice(a - b, c - b) for a, b, c in zip(low[1:], start[1:], high[1:], strict=True))
        with self.dense.reading(part.file) as file:
            file.seek(part.at + (first - above) * row)
            for begin in range(first, end, rows):
                count = min(rows, end - begin)
                read = torch.frombuffer(bytearray(file.read(count * row)), dtype=self.dtype)
                if not low:
                    found.copy_(read.view(()))
                    continue
                to = begin - start[0]
                found[(slice(to, to + count), *outer)] = read.view(count, *part.size[1:])[
                    (slice(None), *inner)
                ]

    def whole(self) -> Tensor:
        """Return the whole tensor."""
        return self.read([0] * len(self.shape), self.shape)


class SavedDense:
    """Network and optimizer in the files of a checkpoint, with tensors that are read in slices.

    Args:
        storage: of the checkpoint.
        manifest: of the checkpoint.

    Attributes:
        weights: name -> tensor.
        optimizer: `state_dict` of the optimizer; empty if there was none.

    Raises:
        CheckpointError: a file is missing or damaged, or parts do not form whole tensors.
    """

    def __init__(self, storage: Storage, manifest: Manifest) -> None:
        self._storage, self._manifest = storage, manifest
        for name in (MODEL, OPTIMIZER):
            if name not in manifest.files and not self._files(name):
                raise self.wrong(f"{name} is missing")
        self.weights, _ = self._tensors(MODEL)
        self.optimizer = self._optimizer()

    def _files(self, name: str) -> list[str]:
        kind = name.partition(".")[0]
        return sorted(file for file in self._manifest.files if is_dense_file(file) and file.startswith(kind))

    def _optimizer(self) -> dict[str, Any]:
        tensors, headers = self._tensors(OPTIMIZER)
        with self._parsing():
            return whole_optimizer(tensors, headers)

    def _tensors(self, kind: str) -> tuple[dict[str, SavedTensor], list[dict[str, str]]]:
        """Return the tensors of all files of a kind, and the metadata of each file."""
        tensors, headers = dict[str, SavedTensor](), list[dict[str, str]]()
        for file in self._files(kind):
            with self._parsing():
                header, begin = self._header(file)
                headers.append(header.pop("__metadata__", {}))
                regions = json.loads(headers[-1].get("parts", "{}"))
                for name, entry in header.items():
                    size, at = tuple(entry["shape"]), begin + entry["data_offsets"][0]
                    shape, start = regions.get(name, (size, [0] * len(size)))
                    if not all(type(number) is int for number in (*shape, *start)):
                        raise ValueError(f"the position of {name} is not given in whole numbers")
                    part = _Part(file, at, tuple(start), size)
                    new = SavedTensor(name, torch.Size(shape), DTYPES[entry["dtype"]], self)
                    tensor = tensors.setdefault(name, new)
                    # A whole tensor of several processes is the same in all; the first is used.
                    if not tensor.parts or name in regions:
                        tensor.parts.append(part)
                    _check(part, new, tensor)
        for tensor in tensors.values():
            if not _is_grid(tensor):
                raise self.wrong(f"parts of {tensor.name} are missing or duplicated")
        return tensors, headers

    def _header(self, file: str) -> tuple[dict[str, Any], int]:
        """Return the header of a safetensors file, and the position where its tensors begin."""
        with self.reading(file) as opened:
            size = int.from_bytes(opened.read(8), "little")
            if size > self._manifest.files[file].bytes:
                raise ValueError(f"the header of {file} is longer than the file")
            header = json.loads(opened.read(size))
        return header, 8 + size

    @contextmanager
    def reading(self, file: str) -> Iterator[IO[bytes]]:
        """Open a file whose bytes are verified when they are read."""
        with self._storage.open(f"{self._manifest.data}/{file}", self._manifest.files[file]) as opened:
            yield opened  # type: ignore[misc]

    @contextmanager
    def _parsing(self) -> Iterator[None]:
        try:
            yield
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise self.wrong(f"{type(error).__name__}: {error}") from error

    def wrong(self, how: str) -> Exception:
        """Return the error about files with valid checksums and invalid content."""
        return damaged(f"{self._storage.path(self._manifest.data)}/*.safetensors", how)


def is_dense_file(name: str) -> bool:
    """Return whether a file holds weights of the network or state of its optimizer."""
    return _FILE.fullmatch(name) is not None


def _check(part: _Part, given: SavedTensor, known: SavedTensor) -> None:
    """Raise ValueError unless a part lies in its tensor and agrees with the other parts."""
    if given.shape != known.shape or given.dtype != known.dtype:
        raise ValueError(f"parts of {given.name} differ in shape or type")
    inside = zip(part.start, part.size, given.shape, strict=True)
    if not all(a >= 0 and n >= 0 and a + n <= whole for a, n, whole in inside):
        raise ValueError(f"a part of {given.name} exceeds the tensor")


def _is_grid(tensor: SavedTensor) -> bool:
    """Return whether the parts are the cells of a grid that fills the tensor, as a mesh divides it."""
    parts = [part for part in tensor.parts if math.prod(part.size)]
    if not tensor.shape.numel():
        return not parts
    cells = 1
    for dim, size in enumerate(tensor.shape):
        sides = sorted({(part.start[dim], part.size[dim]) for part in parts})
        cells *= len(sides)
        at = 0
        for start, length in sides:
            if start != at:
                return False
            at += length
        if at != size:
            return False
    return len(parts) == len({part.start for part in parts}) == cells


def loaded_values(value: Any) -> Any:
    """Return plain data with each `SavedTensor` read."""
    if isinstance(value, dict):
        return {key: loaded_values(item) for key, item in value.items()}
    return value.whole() if isinstance(value, SavedTensor) else value
