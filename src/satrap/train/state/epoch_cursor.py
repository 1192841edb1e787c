"""The position in an epoch of the data; any number of workers can continue from it."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from satrap.batch import Batch
from satrap.data.batch_rows import concat_rows, slice_rows
from satrap.data.streams.events import merged_offsets
from satrap.errors import ConfigError
from satrap.train.predictor import TrainingData
from satrap.train.schema_checks import a_batch


@dataclass(slots=True)
class ShareCursor:
    """The rest of share `worker` of `workers` in an epoch: every `stride`-th batch after `position`."""

    worker: int
    workers: int
    position: Any = None
    """Position of the last trained batch; None at the start, or if batches have no position."""
    done: int = 0
    """Batches read so far; used if batches have no position."""
    skip: int = 0
    """Batches before the next one, which other workers train."""
    stride: int = 1
    """1 as long as a single worker reads the share."""
    batch: int | None = None
    """Samples in a batch, None if unknown."""
    cut: Sequence[int] | None = None
    """First and end of the samples of each batch that this worker trains; None: all."""

    def split(self, parts: int) -> list[ShareCursor]:
        """Return `parts` streams that together contain each of these batches once."""
        return [
            replace(self, skip=self.skip + i * self.stride, stride=self.stride * parts) for i in range(parts)
        ]

    def batches(self, data: TrainingData, epoch: int) -> Iterator[Batch | None]:
        """Yield the remaining batches; `data` is the share."""
        if self.done and self.position is None:
            batches: Iterator[Batch | None] = itertools.islice(data.batches(epoch), self.done, None)
        else:
            batches = data.batches(epoch, self.position) if self.done else data.batches(epoch)
        remaining = itertools.islice(batches, self.skip, None, self.stride)
        return (batch if batch is None else a_batch(batch) for batch in remaining)

    def trained(self, position: Any) -> None:
        """Count the next batch, which ends at `position`, as trained."""
        self.position, self.done, self.skip = position, self.done + self.skip + 1, self.stride - 1


class EpochCursor:
    """The remaining batches of the epoch for this worker.

    Usually this is one stream: the rest of its share. If a different number of workers began the epoch, one
    worker, or several in turn, read each unfinished share to its end, so that every batch is trained exactly
    once. The next epoch is split over the present workers.

    If all workers together train the same number of samples per step as before, and step together, each step
    of the epoch has the same samples as without the change: each worker trains its part of the former
    workers' batches. Then several workers may read the same share.

    Args:
        rank, size: of this worker among the workers that read different shares.
        batch: samples of this worker in a step, if known.
        together: whether all workers take each step together.
    """

    def __init__(self, rank: int, size: int, batch: int | None = None, *, together: bool = False) -> None:
        self.rank, self.size = rank, size
        self._batch, self._together = batch, together
        self.begin()

    def begin(self) -> None:
        """Go to the start of an epoch."""
        self._streams = [ShareCursor(self.rank, self.size, batch=self._batch)]
        self._order: deque[list[tuple[ShareCursor, Any]]] = deque()

    def batches(self, data: TrainingData, epoch: int) -> Iterator[Batch | None]:
        """Yield the remaining batches of the epoch: from several streams in turn, or joined.

        None: there is no batch at present.

        Raises:
            ConfigError: a different number of workers began the epoch, and the data cannot be split as it was
                then.
        """
        self._order.clear()
        opened = [(s, s.batches(self._share(data, s), epoch)) for s in self._streams]
        return self._joined(opened) if self._is_cut else self._in_turn(deque(opened))

    @property
    def of_stream(self) -> bool:
        """Whether the position is in a stream of events, whose batches depend on their time of arrival."""
        return merged_offsets([stream.position for stream in self._streams]) is not None

    @property
    def _is_cut(self) -> bool:
        return any(stream.cut is not None for stream in self._streams)

    def _in_turn(self, streams: deque[tuple[ShareCursor, Iterator[Batch | None]]]) -> Iterator[Batch | None]:
        while streams:
            stream, batches = streams.popleft()
            for batch in itertools.islice(batches, 1):
                if batch is not None:
                    self._order.append([(stream, batch.position)])
                yield batch
                streams.append((stream, batches))

    def _joined(self, streams: Sequence[tuple[ShareCursor, Iterator[Batch | None]]]) -> Iterator[Batch]:
        """Yield this worker's samples of one batch of each stream; batches never grow within an epoch."""
        while True:
            read = [(stream, next(batches, None)) for stream, batches in streams]
            there = [(stream, batch) for stream, batch in read if batch is not None]
            cuts = [(batch, stream.cut or (0, batch.size)) for stream, batch in there]
            parts = [
                slice_rows(batch, start, min(end, batch.size))
                for batch, (start, end) in cuts
                if start < batch.size
            ]
            if not parts:
                return
            self._order.append([(stream, batch.position) for stream, batch in there])
            yield concat_rows(parts)

    def _share(self, data: TrainingData, stream: ShareCursor) -> TrainingData:
        options: dict[str, Any] = {"worker": stream.worker, "workers": stream.workers}
        # The position belongs to the former batch size; with another one, the reader raises an error.
        if stream.cut is not None and stream.batch != self._batch:
            options["batch_size"] = stream.batch
        if options == {"worker": self.rank, "workers": self.size}:
            return data
        if not hasattr(data, "with_options"):
            raise ConfigError(
                f"the data cannot be split for {stream.workers} workers, with which the epoch began",
                why="samples would be lost or trained twice",
                fix=f"resume with {stream.workers} workers, or read the data with satrap.data.read",
            )
        share: TrainingData = data.with_options(**options)
        return share

    def trained(self, batch: Batch) -> None:
        """Count the oldest untrained batch as trained."""
        for stream, position in self._order.popleft():
            stream.trained(position)
            if not self._is_cut:
                self._streams = [
                    *(s for s in self._streams if s is not stream),
                    stream,
                ]  # the other streams come first

    def state(self) -> list[dict[str, Any]]:
        """Return the streams as plain data, in the order in which they are due."""
        return [asdict(stream) for stream in self._streams]

    def restore(self, states: Sequence[Sequence[Mapping[str, Any]]]) -> None:
        """Continue an epoch, given the `state` of every worker that took part in it, in order of rank.

        In a stream of events, each worker continues with its partitions, even if other workers read them
        before.
        """
        offsets = merged_offsets([stream["position"] for streams in states for stream in streams])
        if offsets is not None:
            self._streams = [ShareCursor(self.rank, self.size, offsets, done=1, batch=self._batch)]
            return
        if len(states) == self.size:
            self._streams = [ShareCursor(**stream) for stream in states[self.rank]]
            return
        # The first streams of all workers, then the second: similar positions are spread evenly.
        rounds = itertools.zip_longest(*states)
        streams = [
            ShareCursor(**stream)
            for streams_of_round in rounds
            for stream in streams_of_round
            if stream is not None
        ]
        begun = self._begun(streams)
        if begun is None:
            self._streams = shared_out(streams, self.size)[self.rank]
        elif any(stream.done for stream in begun):
            self._streams = self._cuts(begun)
        else:
            self.begin()

    def _begun(self, streams: Sequence[ShareCursor]) -> list[ShareCursor] | None:
        """Return the shares with which the epoch began, if steps have the same number of samples now."""
        each = {(s.workers, s.batch) for s in streams}
        if not self._together or self._batch is None or len(each) > 1:
            return None
        [(workers, batch)] = each
        cut = any(s.cut is not None for s in streams)
        if batch is None or batch * workers != self._batch * self.size or (batch == self._batch and not cut):
            return None
        furthest = {s.worker: s for s in sorted(streams, key=lambda s: s.done)}
        return [replace(furthest[worker], cut=None) for worker in range(workers)]

    def _cuts(self, begun: Sequence[ShareCursor]) -> list[ShareCursor]:
        """Return this worker's streams, cut from shares whose batches together are one step."""
        assert self._batch is not None
        first, cuts = self.rank * self._batch, []
        for number, stream in enumerate(begun):
            assert stream.batch is not None
            before = number * stream.batch
            start, end = max(first - before, 0), min(first + self._batch - before, stream.batch)
            if start < end:
                cuts.append(replace(stream, cut=(start, end)))
        return cuts


def shared_out(streams: Sequence[ShareCursor], workers: int) -> list[list[ShareCursor]]:
    """Return the streams of each worker: some whole ones, or one part of one."""
    if len(streams) >= workers:
        return [list(streams[worker::workers]) for worker in range(workers)]
    parts = [s.split(len(range(i, workers, len(streams)))) for i, s in enumerate(streams)]
    return [[parts[worker % len(streams)][worker // len(streams)]] for worker in range(workers)]
