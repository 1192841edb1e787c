"""Where a pass over the data stands, for any number of workers that go on with it."""

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
    """What is left of one share of a pass: of the batches after `position`, every `stride`-th.

    Args:
        worker, workers: whose share it is, of how many.
        position: of the last batch that was trained; None at the start, or if batches do not tell.
        done: batches read so far; what counts if batches have no position.
        skip: batches to leave out before the next one, which others train.
        stride: 1 as long as one worker reads the share alone.
    """

    worker: int
    workers: int
    position: Any = None
    done: int = 0
    skip: int = 0
    stride: int = 1

    def split(self, parts: int) -> list[Stream]:
        """Return so many streams that have the same batches together, each once."""
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
        """Take note that the next batch is done."""
        self.position, self.done, self.skip = batch.position, self.done + self.skip + 1, self.stride - 1


class Reading:
    """Which batches of the pass this worker has still to train.

    As a rule that is one stream: its share, from where it stands. A pass that other workers began is gone on
    with by streams: each share that is not finished is read by one worker to its end, or by several in turn,
    so that every batch is trained exactly once. The next pass is shared out anew.

    Args:
        rank, world: of this worker.
    """

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self.begin()

    def begin(self) -> None:
        """Stand at the start of a pass."""
        self._streams = [Stream(self.rank, self.world)]
        self._order: deque[Stream] = deque()

    def batches(self, data: Data, epoch: int) -> Iterator[Batch]:
        """Yield the batches of the pass that are left, of several streams in turn.

        Raises:
            ConfigError: other workers began the pass, and the data cannot be shared out as among them.
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
        if (stream.worker, stream.workers) == (self.rank, self.world):
            return data
        if not hasattr(data, "with_options"):
            raise ConfigError(
                f"the data cannot be shared out as {stream.workers} workers began to read it",
                why="samples would be lost or trained twice",
                fix=f"go on with {stream.workers} workers, or read with satrap.data.read",
            )
        share: Data = data.with_options(worker=stream.worker, workers=stream.workers)
        return share

    def trained(self, batch: Batch) -> None:
        """Take note that the first of the batches handed out and not trained yet is done."""
        stream = self._order.popleft()
        stream.trained(batch)
        self._streams = [*(s for s in self._streams if s is not stream), stream]  # the others are due first

    def state(self) -> list[dict[str, Any]]:
        """Return the streams as plain data, in the order in which they are due."""
        return [asdict(stream) for stream in self._streams]

    def restore(self, states: Sequence[Sequence[Mapping[str, Any]]]) -> None:
        """Go on with a pass.

        Args:
            states: of every worker that took part in it, in order of rank.
        """
        if len(states) == self.world:
            self._streams = [Stream(**stream) for stream in states[self.rank]]
            return
        # the first streams of all workers, then the second: shares of equal standing are spread evenly
        rounds = itertools.zip_longest(*states)
        streams = [Stream(**stream) for one in rounds for stream in one if stream is not None]
        self._streams = shared_out(streams, self.world)[self.rank]


def shared_out(streams: Sequence[Stream], workers: int) -> list[list[Stream]]:
    """Return the streams of each worker: some whole ones, or one part of one."""
    if len(streams) >= workers:
        return [list(streams[worker::workers]) for worker in range(workers)]
    parts = [s.split(len(range(i, workers, len(streams)))) for i, s in enumerate(streams)]
    return [[parts[worker % len(streams)][worker // len(streams)]] for worker in range(workers)]
