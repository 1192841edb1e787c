"""The position in a pass over the data; any number of workers can continue from it."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from satrap.batch import Batch
from satrap.errors import ConfigError
from satrap.train.predictor import Data


@dataclass(slots=True)
class Stream:
    """The rest of share `worker` of `workers` in a pass: every `stride`-th batch after `position`."""

    worker: int
    workers: int
    position: Any = None
    """Of the last trained batch; None at the start, or if batches have no position."""
    done: int = 0
    """Batches read so far; used if batches have no position."""
    skip: int = 0
    """Batches before the next one, which other workers train."""
    stride: int = 1
    """1 as long as one worker reads the share alone."""

    def split(self, parts: int) -> list[Stream]:
        """Return `parts` streams that together have each of these batches once."""
        return [
            replace(self, skip=self.skip + i * self.stride, stride=self.stride * parts) for i in range(parts)
        ]

    def batches(self, data: Data, epoch: int) -> Iterator[Batch]:
        """Yield the batches that are left; `data` is the share."""
        if self.done and self.position is None:
            found: Iterator[Batch] = itertools.islice(data.batches(epoch), self.done, None)
        else:
            found = data.batches(epoch, self.position) if self.done else data.batches(epoch)
        return itertools.islice(found, self.skip, None, self.stride)

    def trained(self, batch: Batch) -> None:
        """Count the next batch as trained."""
        self.position, self.done, self.skip = batch.position, self.done + self.skip + 1, self.stride - 1


class Reading:
    """The batches of the pass that this worker still has to train.

    Usually this is one stream: the rest of its share. If a different number of workers began the pass, one
    worker, or several in turn, read each unfinished share to its end, so that every batch is trained exactly
    once. The next pass is divided among the present workers.

    Args:
        rank, size: of this worker among those that read different shares.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.begin()

    def begin(self) -> None:
        """Go to the start of a pass."""
        self._streams = [Stream(self.rank, self.size)]
        self._order: deque[Stream] = deque()

    def batches(self, data: Data, epoch: int) -> Iterator[Batch]:
        """Yield the batches of the pass that are left, of several streams in turn.

        Raises:
            ConfigError: a different number of workers began the pass, and the data cannot be divided as then.
        """
        self._order.clear()
        open_streams = deque((s, s.batches(self._share(data, s), epoch)) for s in self._streams)
        return self._in_turn(open_streams)

    def _in_turn(self, streams: deque[tuple[Stream, Iterator[Batch]]]) -> Iterator[Batch]:
        while streams:
            stream, batches = streams.popleft()
            batch = next(batches, None)
            if batch is not None:
                self._order.append(stream)
                yield batch
                streams.append((stream, batches))

    def _share(self, data: Data, stream: Stream) -> Data:
        if (stream.worker, stream.workers) == (self.rank, self.size):
            return data
        if not hasattr(data, "with_options"):
            raise ConfigError(
                f"the data cannot be shared out as {stream.workers} workers began to read it",
                why="samples would be lost or trained twice",
                fix=f"resume with {stream.workers} workers, or read with satrap.data.read",
            )
        share: Data = data.with_options(worker=stream.worker, workers=stream.workers)
        return share

    def trained(self, batch: Batch) -> None:
        """Count the oldest untrained batch as trained."""
        stream = self._order.popleft()
        stream.trained(batch)
        self._streams = [*(s for s in self._streams if s is not stream), stream]  # the others are due first

    def state(self) -> list[dict[str, Any]]:
        """Return the streams as plain data, in the order in which they are due."""
        return [asdict(stream) for stream in self._streams]

    def restore(self, states: Sequence[Sequence[Mapping[str, Any]]]) -> None:
        """Continue a pass, given the `state` of every worker that took part in it, in order of rank."""
        if len(states) == self.size:
            self._streams = [Stream(**stream) for stream in states[self.rank]]
            return
        # The first streams of all workers, then the second: similar positions are spread evenly.
        rounds = itertools.zip_longest(*states)
        streams = [Stream(**stream) for one in rounds for stream in one if stream is not None]
        self._streams = shared_out(streams, self.size)[self.rank]


def shared_out(streams: Sequence[Stream], workers: int) -> list[list[Stream]]:
    """Return the streams of each worker: some whole ones, or one part of one."""
    if len(streams) >= workers:
        return [list(streams[worker::workers]) for worker in range(workers)]
    parts = [s.split(len(range(i, workers, len(streams)))) for i, s in enumerate(streams)]
    return [[parts[worker % len(streams)][worker // len(streams)]] for worker in range(workers)]
