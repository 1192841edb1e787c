"""Lets process 0 write a network that is spread over all processes, without holding all of it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from satrap.checkpoint.dense import flat_optimizer, whole_optimizer
from satrap.checkpoint.files.storage import FileEntry, Storage
from satrap.checkpoint.files.tensor_stream import DTYPES, NAMES, FileLayout, bytes_of
from satrap.checkpoint.parts import write_file
from satrap.checkpoint.saved_dense import OPTIMIZER, DensePart
from satrap.dense import WorkerGroup, Workers
from satrap.train.state.across_workers import pack_worker, unpack_worker
from satrap.train.state.dense_files import unused_key


class DenseStream:
    """Writes one checkpoint's dense network as whole files.

    Process 0 calls `write` and `release`, the others `assist`. The files are equal to the files of a process
    that holds the whole network. Names, types and shapes determine the layout of a file; then all processes
    send their parts of a few megabytes of it at a time. All make one at the same time, and none changes its
    part until it is written.

    Args:
        workers: all processes.
        part: the part of this process.
        group: sends numbers; default `workers`. A thread other than the training thread needs
            `Workers.background_group`.
    """

    def __init__(self, workers: Workers, part: DensePart, group: WorkerGroup | None = None) -> None:
        self._workers, self._group, self._key = workers, group or workers, unused_key(workers)
        self._calls, self._released = 0, False
        self._files, self._regions = part.files(), part.regions
        descriptions = [json.loads(reply) for reply in workers.gather(json.dumps(self._described()).encode())]
        layout_of = json.loads(workers.share(json.dumps(_merged(descriptions)).encode()))
        self._layouts, self._givers = dict[str, FileLayout](), dict[str, dict[str, int | None]]()
        for file, (tensors, metadata) in layout_of.items():
            self._givers[file] = {name: giver for name, (_, _, giver) in tensors.items()}
            shapes = {name: (DTYPES[dtype], shape) for name, (dtype, shape, _) in tensors.items()}
            self._layouts[file] = FileLayout.of(shapes, metadata)

    def _described(self) -> dict[str, Any]:
        """Return, by file, name -> [type, shape of the whole, process that sends it], and metadata.

        If the process is None, each process sends its part.
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
            self.release()  # even after an error: the others have rows to write

    def _streamed(self, file: str) -> Iterator[bytes | memoryview]:
        yield self._layouts[file].head
        for number in range(len(self._layouts[file].batches)):
            yield from self._collected(file, number)

    def _collected(self, file: str, number: int) -> Iterator[memoryview]:
        """Yield the bytes of a batch of blocks, including the parts of other processes."""
        batch = self._layouts[file].batches[number]
        contributions = [self._slices(file, number)]
        if any(self._givers[file][block.name] != 0 for block in batch):
            self._tell([file, number])
            contributions += map(unpack_worker, self._group.gather(b"")[1:])
        for block in batch:
            parts = [
                (places[block.name], slices[block.name])
                for places, slices in contributions
                if block.name in slices
            ]
            missing = math.prod(block.size) - sum(part.numel() for _, part in parts)
            assert not missing, f"parts of {block.name} are missing"
            if len(parts) == 1:  # not copied: it may be larger than the free memory
                yield bytes_of(parts[0][1])
                continue
            whole = torch.empty(block.size, dtype=parts[0][1].dtype)
            for place, part in parts:
                at = (slice(start, start + size) for start, size in zip(place, part.shape, strict=True))
                whole[tuple(at)] = part
            yield bytes_of(whole)

    def _slices(self, file: str, number: int) -> tuple[dict[str, Sequence[int]], dict[str, Tensor]]:
        """Return this process's slices of a batch, and the offset of each in its block."""
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
        """Release the others if nothing was written."""
        if not self._released:
            self._released = True
            self._tell(None)

    def assist(self) -> None:
        """Send this process's parts, until process 0 has everything."""
        while (position := json.loads(self._heard())) is not None:
            self._calls += 1
            self._group.gather(pack_worker(*self._slices(*position)))

    def _heard(self) -> bytes:
        return self._workers.posted(f"{self._key}/{self._calls}", readers=self._workers.size - 1)


def _merged(said: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the descriptions of all processes; the first that has a whole tensor sends it."""
    by_file = dict[str, tuple[dict[str, Any], list[dict[str, str]]]]()
    for files in said:
        for file, (tensors, metadata) in files.items():
            tensors_of, headers = by_file.setdefault(file, ({}, []))
            tensors_of |= {name: about for name, about in tensors.items() if name not in tensors_of}
            headers.append(metadata)
    return {
        file: (tensors_of, flat_optimizer(whole_optimizer({}, headers))[1] if file == OPTIMIZER else {})
        for file, (tensors_of, headers) in by_file.items()
    }
