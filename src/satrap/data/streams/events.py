"""`read_stream`: a log of events as batches that go on for as long as events come, each counted once."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from satrap.arguments import checked
from satrap.batch import Batch
from satrap.data.columns import as_array, is_text, taken
from satrap.data.csv import CsvOptions
from satrap.data.dataset import Dataset, read
from satrap.data.encode import MISSING, Chunk, Encoder, Missing, needed_columns
from satrap.data.rows import concat_rows, slice_rows
from satrap.data.streams.log import Events, Log
from satrap.errors import ConfigError, DataError
from satrap.schema import Schema

POLL_SECONDS = 0.1
"""Longest time for which a reader does not notice that training has ended."""

HEAD_SECONDS = 5.0
"""Longest time for which `EventStream.head` reads."""

SOME = 10
"""If so many events, and all others that were read with them, cannot be used, something else is wrong."""

OFFSETS = "offsets"
"""Key of a position: partition -> [events trained on so far, offset of the next one]."""


@checked()
@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """How a stream is read, see `read_stream`."""

    batch_size: int = 4096
    wait: float = 1.0
    follow: bool = False
    time: str | None = None
    worker: int = 0
    workers: int = 1
    missing: tuple[str, ...] = MISSING
    bad_events: str = "stop"

    def __post_init__(self) -> None:
        if self.bad_events not in ("stop", "skip"):
            raise ConfigError(f"stream: bad_events is stop or skip, got {self.bad_events!r}")
        for name in ("batch_size", "workers"):
            if getattr(self, name) < 1:
                raise ConfigError(f"stream: {name} must be >= 1, got {getattr(self, name)}")
        if not 0 <= self.worker < self.workers:
            raise ConfigError(f"stream: there is no worker {self.worker} of {self.workers}")
        if not 0 < self.wait < float("inf"):
            raise ConfigError(f"stream: wait must be a number of seconds above 0, got {self.wait}")


class EventStream:
    """A log of events as training data, see `read_stream`.

    A batch's `position` says for each partition which event is next. Another worker may go on from it, and
    so may another number of workers from all of theirs: each event is trained on once.

    Attributes:
        schema: labels and features.
        settings: how it is read.
    """

    def __init__(self, log: Log, schema: Schema, settings: StreamSettings) -> None:
        self.schema, self.settings, self._log = schema, settings, log
        ids, numbers = needed_columns(schema)
        times = [settings.time] if settings.time is not None else []
        self._texts = list(dict.fromkeys([*ids, *times]))
        self._columns = list(dict.fromkeys([*self._texts, *numbers]))

    def __repr__(self) -> str:
        s = self.settings
        return f"EventStream({self._log.name}, batch_size={s.batch_size}, follow={s.follow})"

    def with_options(self, *, schema: Schema | None = None, **changes: Any) -> EventStream:
        """Return the same log read with another schema or other settings, see `read_stream`.

        `worker` of `workers` reads a share of the partitions; by default one reads all.

        Raises:
            ConfigError: an unknown or impossible setting.
        """
        unknown = [name for name in changes if name not in StreamSettings.__slots__]
        if unknown:
            raise ConfigError(
                f"a stream has no setting {unknown[0]!r}",
                fix=f"use schema, {', '.join(StreamSettings.__slots__)}",
            )
        return EventStream(self._log, schema or self.schema, replace(self.settings, **changes))

    def head(self, count: int) -> Dataset:
        """Return the first events that the log holds now, at most `count`, as a data set.

        Raises:
            DataError: there are none.
        """
        parts, left, until = list[pa.Table](), count, time.monotonic() + HEAD_SECONDS
        with closing(self._log.open(self._columns, self._texts, {}, 0, 1)) as reader:
            while left > 0:
                found = reader.read(left, POLL_SECONDS)
                parts += [one.table.slice(0, left) for one in found]
                left = count - sum(part.num_rows for part in parts)
                if reader.caught_up() or (parts and time.monotonic() > until):
                    break  # a log that grows as fast as it is read is never read to its end
        if not parts:
            raise DataError(
                "there are no events yet",
                where=self._log.name,
                why="what the numbers of features are like is measured by the first of them",
                fix="start again when there are some",
            )
        columns = {
            name: as_array(_of_one_type([_plain(part.column(name)) for part in parts]))
            for name in self._columns
        }
        options = CsvOptions(missing=self.settings.missing)
        return read(pa.table(columns).slice(0, count), self.schema, csv=options)

    def batches(self, epoch: int = 0, position: Mapping[str, Any] | None = None) -> Iterator[Batch | None]:
        """Yield batches in the order of each partition; None: there are no events at present.

        A batch that is not full is yielded once its first event has waited for `wait` seconds.

        Args:
            epoch: has no effect.
            position: of a batch, of this or another worker, or the union of several: where to go on.

        Raises:
            DataError: events that cannot be used, or are no longer there.
            ConfigError: a position of something else.
        """
        s, offsets = self.settings, _offsets(position)
        held, since = _Held(_Encoder(self.schema, s)), 0.0
        start = {name: offset for name, (_, offset) in offsets.items()}
        with closing(self._log.open(self._columns, self._texts, start, s.worker, s.workers)) as reader:
            while True:
                waits = POLL_SECONDS
                if held.size:
                    waits = min(max(since + s.wait - time.monotonic(), 0.0), POLL_SECONDS)
                found = reader.read(s.batch_size - held.size, waits)
                now = time.monotonic()
                if found and not held.size:
                    since = now
                held.add(found)
                while held.size >= s.batch_size:
                    yield self._batch(held, offsets, s.batch_size)
                    since = now
                over = not found and not s.follow and reader.caught_up()
                if held.size and (over or now - since >= s.wait):
                    yield self._batch(held, offsets, held.size)
                elif over:
                    return
                elif not found and not held.size:
                    yield None

    def _batch(self, held: _Held, offsets: dict[str, Any], count: int) -> Batch:
        batch = held.take(count, offsets)
        batch.position = {OFFSETS: dict(offsets)}
        return batch


class _Encoder:
    """Encodes events, with their times if a column has them."""

    def __init__(self, schema: Schema, settings: StreamSettings) -> None:
        self._encode = Encoder(schema, missing=settings.missing)
        self._time, self._missing = settings.time, Missing(settings.missing, schema.salt)
        self._salt, self._skips, self._skipped = schema.salt, settings.bad_events == "skip", 0

    def usable(self, events: Events) -> tuple[Batch, Events] | None:
        """Return events and their batch, without those that cannot be used if they are to be left out.

        None: there are no others. `DataError` if they are not to be left out, or all of many would be.
        """
        try:
            return self(events), events
        except DataError as error:
            count = events.table.num_rows
            kept = np.array([*self._good(events, 0, count)] if self._skips else [], np.int64)
            if not self._skips or (not len(kept) and count > SOME):
                raise
            self._warn(count - len(kept), error)
        if not len(kept):
            return None
        origin = replace(events.origin, rows=events.origin.rows[kept])
        left = Events(
            events.partition,
            taken(events.table, kept),
            origin,
            lambda number: events.after(int(kept[number - 1]) + 1),
        )
        return self(left), left

    def _good(self, events: Events, start: int, stop: int) -> Iterator[int]:
        """Yield which of some events can be used: all, or those of either half."""
        origin = replace(events.origin, rows=events.origin.rows[start:stop])
        try:
            self(replace(events, table=events.table.slice(start, stop - start), origin=origin))
        except DataError:
            middle = (start + stop) // 2
            if stop - start > 1:
                yield from self._good(events, start, middle)
                yield from self._good(events, middle, stop)
        else:
            yield from range(start, stop)

    def _warn(self, more: int, error: DataError) -> None:
        """Tell of the first event that was left out, the tenth, the hundredth and so on."""
        before, self._skipped = self._skipped, self._skipped + more
        if len(str(self._skipped)) > len(str(before)) or not before:
            text = f"{self._skipped:,} events were left out so far; the last: {error.what}, {error.where}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)

    def __call__(self, events: Events) -> Batch:
        batch = self._encode(events.table, events.origin)
        if self._time is not None:
            chunk = Chunk(events.table, events.origin, self._salt, self._missing, {})
            batch.times = chunk.seconds(self._time)
        return batch


@dataclass(slots=True)
class _Held:
    """Encoded events that are not yet in a batch."""

    encode: _Encoder
    size: int = 0
    parts: list[tuple[Batch, Events, int]] = field(default_factory=list)
    """(batch, its events, how many of them are taken)"""

    def add(self, found: Sequence[Events]) -> None:
        for events in found:
            if events.table.num_rows and (found_usable := self.encode.usable(events)) is not None:
                batch, usable = found_usable
                self.parts.append((batch, usable, 0))
                self.size += batch.size

    def take(self, count: int, offsets: dict[str, Any]) -> Batch:
        """Return the next events, at most those held, and put the offsets after them into `offsets`."""
        parts: list[Batch] = []
        self.size -= count
        while count:
            batch, events, start = self.parts.pop(0)
            stop = min(start + count, batch.size)
            parts.append(slice_rows(batch, start, stop))
            before = offsets.get(events.partition, [0])[0]
            offsets[events.partition] = [before + stop - start, events.after(stop)]
            count -= stop - start
            if stop < batch.size:
                self.parts.insert(0, (batch, events, stop))
        return concat_rows(parts)


def _of_one_type(parts: Sequence[pa.Array]) -> pa.ChunkedArray:
    """Return arrays one after another; numbers beside texts become texts, which have the same ids."""
    kinds = {part.type for part in parts}
    if len(kinds) > 1 and any(is_text(kind) for kind in kinds):
        parts = [part.cast(pa.string()) for part in parts]
    elif len(kinds) > 1 and all(pa.types.is_floating(k) or pa.types.is_integer(k) for k in kinds):
        parts = [part.cast(pa.float64()) for part in parts]
    return pa.chunked_array(parts)


def _plain(column: pa.ChunkedArray) -> pa.Array:
    array = as_array(column)
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _offsets(position: Mapping[str, Any] | None) -> dict[str, Any]:
    if position is None:
        return {}
    if not isinstance(position.get(OFFSETS), Mapping):
        raise ConfigError(
            "the saved position is not one of a stream",
            why="going on from it would skip or repeat events",
            fix="resume with the data that the run began with",
        )
    return dict(position[OFFSETS])


def merged_offsets(positions: Sequence[Any]) -> dict[str, Any] | None:
    """Return one position for all readers of a stream, given those they reached; None: they have none.

    The reader of a partition has read more of its events than others, who only went on from some position.
    """
    found = [one[OFFSETS] for one in positions if isinstance(one, Mapping) and OFFSETS in one]
    if not found:
        return None
    names = {name for one in found for name in one}
    return {
        OFFSETS: {
            name: max((one[name] for one in found if name in one), key=_count) for name in sorted(names)
        }
    }


def _count(entry: Sequence[Any]) -> int:
    return int(entry[0])


@checked()
def read_stream(
    log: Log,
    schema: Schema,
    *,
    batch_size: int = 4096,
    wait: float = 1.0,
    follow: bool = False,
    time: str | None = None,
    missing: Sequence[str] = MISSING,
    bad_events: str = "stop",
) -> EventStream:
    """Return a log of events as data to train on, in order and once.

    ```python
    log = satrap.data.streams.FolderLog("s3://events/clicks")
    stream = satrap.data.streams.read_stream(log, schema, follow=True)
    trainer.fit(stream, checkpoint=plan)      # until trainer.request_stop(); resume=True goes on
    ```

    Args:
        log: a `FolderLog`, `RedisLog` or `KafkaLog`.
        schema: labels and features; the columns of the log have their names.
        batch_size: samples per batch, default 4096; fewer after `wait` seconds.
        wait: seconds for which an event waits until its batch is full, default 1.
        follow: wait for more events at the end; default False: end there.
        time: column of the events' times; default none. Training measures by it, see `EventHours`.
        missing: values that mean "missing", see `CsvOptions`.
        bad_events: what becomes of events with a value that cannot be used. "stop", the default: an error
            names the place. "skip": they are left out, and a RuntimeWarning tells of the first, the tenth ...

    Raises:
        ConfigError: impossible settings.
    """
    settings = StreamSettings(
        batch_size=batch_size,
        wait=wait,
        follow=follow,
        time=time,
        missing=tuple(missing),
        bad_events=bad_events,
    )
    return EventStream(log, schema, settings)
