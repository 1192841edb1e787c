"""Has process 0 write the network that all processes hold, without ever having it whole."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from satrap.checkpoint.dense import flat_optimizer, whole_optimizer
from satrap.checkpoint.parts import write_file
from satrap.checkpoint.saved_dense import OPTIMIZER, DensePart
from satrap.checkpoint.storage import FileEntry, Storage
from satrap.checkpoint.stream import DTYPES, NAMES, Layout, bytes_of
from satrap.dense import Group, Workers
from satrap.train.dense_files import unused_key
from satrap.train.merge import pack_worker, unpack_worker


class DenseStream:
    """Writes one checkpoint's dense network as whole files.

    Process 0 calls `write` and `release`, the others `assist`.

    The files have the bytes that they would have if process 0 had the network. Names, types and shapes say
    what a file looks like; then all processes send what they have of a few megabytes of it at a time. All
    make one at the same time, and none changes the part until it is written.

    Args:
        workers: all processes.
        part: what this one gives.
        group: sends numbers; default `workers`. Another thread than the one that trains needs
            `Workers.aside`.
    """

    def __init__(self, workers: Workers, part: DensePart, group: Group | None = None) -> None:
        self._workers, self._group, self._key = workers, group or workers, unused_key(workers)
        self._calls, self._released = 0, False
        self._files, self._regions = part.files(), part.regions
        said = [json.loads(one) for one in workers.gather(json.dumps(self._described()).encode())]
        known = json.loads(workers.share(json.dumps(_merged(said)).encode()))
        self._layouts, self._givers = dict[str, Layout](), dict[str, dict[str, int | None]]()
        for file, (tensors, metadata) in known.items():
            self._givers[file] = {name: giver for name, (_, _, giver) in tensors.items()}
            shapes = {name: (DTYPES[dtype], shape) for name, (dtype, shape, _) in tensors.items()}
            self._layouts[file] = Layout.of(shapes, metadata)

    def _described(self) -> dict[str, Any]:
        """Return, by file, name -> [type, shape of the whole, who gives it], and metadata.

        Where None gives a tensor, each process gives its part.
        """

        def described(name: str, tensor: Tensor) -> list[Any]:
            shape, _ = self._regions.get(name, (tensor.shape, None))
            giver = None if name in self._regions else self._workers.rank
            return [NAMES[tensor.dtype], list(shape), giver]

        return {
            file: [{name: described(name, tensor) for name, tensor in tensors.items()}, metadata]
            for file, (tensors, metadata) in self._files.items()
        }

    def write(self, storage: Storage, folder: str) -> Mapping[str, FileEntry]:
        """Write the files of the network, and return them.

        Raises:
            ExchangeError: another process is lost.
        """
        try:
            return {
                file: write_file(storage, f"{folder}/{file}", self._streamed(file)) for file in self._layouts
            }
        finally:
            self.release()  # the others have rows to write

    def _streamed(self, file: str) -> Iterator[bytes | memoryview]:
        yield self._layouts[file].head
        for number in range(len(self._layouts[file].batches)):
            yield from self._collected(file, number)

    def _collected(self, file: str, number: int) -> Iterator[memoryview]:
        """Yield the bytes of a batch of blocks, with what the others have of it."""
        batch = self._layouts[file].batches[number]
        said = [self._slices(file, number)]
        if any(self._givers[file][block.name] != 0 for block in batch):
            self._tell([file, number])
            said += map(unpack_worker, self._group.gather(b"")[1:])
        for block in batch:
            given = [
                (places[block.name], slices[block.name]) for places, slices in said if block.name in slices
            ]
            missing = math.prod(block.size) - sum(part.numel() for _, part in given)
            assert not missing, f"parts of {block.name} are missing"
            if len(given) == 1:  # as it is: it may be larger than the memory left
                yield bytes_of(given[0][1])
                continue
            whole = torch.empty(block.size, dtype=given[0][1].dtype)
            for place, part in given:
                at = (slice(start, start + size) for start, size in zip(place, part.shape, strict=True))
                whole[tuple(at)] = part
            yield bytes_of(whole)

    def _slices(self, file: str, number: int) -> tuple[dict[str, Sequence[int]], dict[str, Tensor]]:
        """Return what this process gives of a batch: where in its block each slice begins, and the slices."""
        places, slices = dict[str, Sequence[int]](), dict[str, Tensor]()
        tensors, _ = self._files[file]
        for block in self._layouts[file].batches[number]:
            if block.name not in tensors or self._givers[file][block.name] not in (None, self._workers.rank):
                continue
            tensor, start = tensors[block.name].detach(), [0] * len(block.size)
            if block.name in self._regions:
                start = list(self._regions[block.name][1])
            if block.size:
                first = max(block.start[0] - start[0], 0)
                end = max(block.start[0] - start[0] + block.size[0], 0)
                tensor, start[0] = tensor[first:end], start[0] + first - block.start[0]
            if tensor.numel():
                places[block.name], slices[block.name] = start, tensor
        return places, slices

    def _tell(self, said: object) -> None:
        self._workers.post(f"{self._key}/{self._calls}", json.dumps(said).encode())
        self._calls += 1

    def release(self) -> None:
        """Let the others go on if nothing was written."""
        if not self._released:
            self._released = True
            self._tell(None)

    def assist(self) -> None:
        """Send what this process has, until process 0 has all."""
        while (said := json.loads(self._heard())) is not None:
            self._calls += 1
            self._group.gather(pack_worker(*self._slices(*said)))

    def _heard(self) -> bytes:
        return self._workers.posted(f"{self._key}/{self._calls}", readers=self._workers.size - 1)


def _merged(said: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what all processes describe; of what several have whole, the first gives it."""
    found = dict[str, tuple[dict[str, Any], list[dict[str, str]]]]()
    for files in said:
        for file, (tensors, metadata) in files.items():
            known, headers = found.setdefault(file, ({}, []))
            known |= {name: about for name, about in tensors.items() if name not in known}
            headers.append(metadata)
    return {
        file: (known, flat_optimizer(whole_optimizer({}, headers))[1] if file == OPTIMIZER else {})
        for file, (known, headers) in found.items()
    }
