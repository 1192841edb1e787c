"""`read_stream`: a log of events as an open-ended stream of batches that contains each event once."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from satrap.batch import Batch
from satrap.data.batch_rows import concat_rows, slice_rows
from satrap.data.dataset import Dataset, read
from satrap.data.encode.encoder import MISSING, ColumnChunk, Encoder, Missing, needed_columns
from satrap.data.formats.columns import as_array, is_text, taken
from satrap.data.formats.csv import CsvOptions
from satrap.data.streams.log import Events, Log
from satrap.errors import ConfigError, DataError
from satrap.runtime.arguments import checked
from satrap.schema import Schema

POLL_SECONDS = 0.1
"""Longest delay until a reader notices that training has ended."""

HEAD_SECONDS = 5.0
"""Time limit of `EventStream.head`."""

SOME = 10
"""If more events than this are read together and none is usable, skipping them would hide a problem."""

OFFSETS = "offsets"
"""Key of a position: partition -> [events trained on so far, offset of the next event]."""


@checked()
@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """Read settings of a stream, see `read_stream`."""

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
            raise ConfigError(f"stream: bad_events must be stop or skip, got {self.bad_events!r}")
        for name in ("batch_size", "workers"):
            if getattr(self, name) < 1:
                raise ConfigError(f"stream: {name} must be >= 1, got {getattr(self, name)}")
        if not 0 <= self.worker < self.workers:
            raise ConfigError(f"stream: worker must be in 0..{self.workers - 1}, got {self.worker}")
        if not 0 < self.wait < float("inf"):
            raise ConfigError(f"stream: wait must be a number of seconds above 0, got {self.wait}")


class EventStream:
    """A log of events as training data, see `read_stream`.

    A batch's `position` contains the next event of each partition. Any worker can resume from it, and a
    different number of workers can resume from the merged positions of all: each event is trained on once.

    Attributes:
        schema: labels and features.
        settings: read settings.
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
        """Return the same log with another schema or other settings, see `read_stream`.

        `worker` of `workers` reads its shard of the partitions; by default one worker reads all.

        Raises:
            ConfigError: an unknown or invalid setting.
        """
        unknown = [name for name in changes if name not in StreamSettings.__slots__]
        if unknown:
            raise ConfigError(
                f"unknown stream setting {unknown[0]!r}",
                fix=f"use schema, {', '.join(StreamSettings.__slots__)}",
            )
        return EventStream(self._log, schema or self.schema, replace(self.settings, **changes))

    def head(self, count: int) -> Dataset:
        """Return the first events of the log's current content, at most `count`, as a data set.

        Raises:
            DataError: the log has no events.
        """
        parts, missing, until = list[pa.Table](), count, time.monotonic() + HEAD_SECONDS
        with closing(self._log.open(self._columns, self._texts, {}, 0, 1)) as reader:
            while missing > 0:
                events = reader.read(missing, POLL_SECONDS)
                parts += [piece.table.slice(0, missing) for piece in events]
                missing = count - sum(part.num_rows for part in parts)
                if reader.caught_up() or (parts and time.monotonic() > until):
                    break  # a log that grows as fast as it is read has no end to reach
        if not parts:
            raise DataError(
                "the log has no events yet",
                where=self._log.name,
                why="statistics of the features are measured on the first events",
                fix="start again when the log has events",
            )
        columns = {
            name: as_array(_of_one_type([_plain(part.column(name)) for part in parts]))
            for name in self._columns
        }
        options = CsvOptions(missing=self.settings.missing)
        rows, size = pa.table(columns).slice(0, count), self.settings.batch_size
        return read(rows, self.schema, csv=options, batch_size=size)

    def batches(self, epoch: int = 0, position: Mapping[str, Any] | None = None) -> Iterator[Batch | None]:
        """Yield batches in the order of each partition; None: no events are available now.

        A partial batch is yielded once its first event has waited for `wait` seconds.

        Args:
            epoch: ignored.
            position: where to resume: a batch's position, of this or another worker, or the union of several.

        Raises:
            DataError: events are unusable or no longer in the log.
            ConfigError: the position does not belong to a stream.
        """
        s, offsets = self.settings, _offsets(position)
        held, since = _Held(_Encoder(self.schema, s)), 0.0
        start = {name: offset for name, (_, offset) in offsets.items()}
        with closing(self._log.open(self._columns, self._texts, start, s.worker, s.workers)) as reader:
            while True:
                waits = POLL_SECONDS
                if held.size:
                    waits = min(max(since + s.wait - time.monotonic(), 0.0), POLL_SECONDS)
                events = reader.read(s.batch_size - held.size, waits)
                now = time.monotonic()
                if events and not held.size:
                    since = now
                held.add(events)
                while held.size >= s.batch_size:
                    yield self._batch(held, offsets, s.batch_size)
                    since = now
                over = not events and not s.follow and reader.caught_up()
                if held.size and (over or now - since >= s.wait):
                    yield self._batch(held, offsets, held.size)
                elif over:
                    return
                elif not events and not held.size:
                    yield None

    def _batch(self, held: _Held, offsets: dict[str, Any], count: int) -> Batch:
        batch = held.take(count, offsets)
        batch.position = {OFFSETS: dict(offsets)}
        return batch


class _Encoder:
    """Encoder of events, including their times if there is a time column."""

    def __init__(self, schema: Schema, settings: StreamSettings) -> None:
        self._encode = Encoder(schema, missing=settings.missing, training=True)
        self._time, self._missing = settings.time, Missing(settings.missing, schema.salt)
        self._salt, self._skips, self._skipped = schema.salt, settings.bad_events == "skip", 0

    def usable(self, events: Events) -> tuple[Batch, Events] | None:
        """Return the usable events and their batch; None if no event is usable.

        `DataError` if bad events are not to be skipped, or if all of many events are bad.
        """
        try:
            return self(events), events
        except DataError as error:
            count = events.table.num_rows
            good = np.array([*self._good(events, 0, count)] if self._skips else [], np.int64)
            if not self._skips or (not len(good) and count > SOME):
                raise
            self._warn(count - len(good), error)
        if not len(good):
            return None
        origin = replace(events.origin, rows=events.origin.rows[good])
        remaining = Events(
            events.partition,
            taken(events.table, good),
            origin,
            lambda number: events.after(int(good[number - 1]) + 1),
        )
        return self(remaining), remaining

    def _good(self, events: Events, start: int, stop: int) -> Iterator[int]:
        """Yield the indices of usable events, by bisection."""
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
        """Warn about the first skipped event, the tenth, the hundredth and so on."""
        before, self._skipped = self._skipped, self._skipped + more
        if len(str(self._skipped)) > len(str(before)) or not before:
            text = f"{self._skipped:,} events skipped so far; the last one: {error.what}, {error.where}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)

    def __call__(self, events: Events) -> Batch:
        batch = self._encode(events.table, events.origin)
        if self._time is not None:
            chunk = ColumnChunk(events.table, events.origin, self._salt, self._missing, {})
            batch.times = chunk.seconds(self._time)
        return batch


@dataclass(slots=True)
class _Held:
    """Encoded events that are not in a batch yet."""

    encode: _Encoder
    size: int = 0
    parts: list[tuple[Batch, Events, int]] = field(default_factory=list)
    """(batch, its events, number of events taken)"""

    def add(self, found: Sequence[Events]) -> None:
        for events in found:
            if events.table.num_rows and (found_usable := self.encode.usable(events)) is not None:
                batch, usable = found_usable
                self.parts.append((batch, usable, 0))
                self.size += batch.size

    def take(self, count: int, offsets: dict[str, Any]) -> Batch:
        """Return the next `count` events and write the offsets after them to `offsets`."""
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
    """Return concatenated arrays; numbers mixed with texts become texts, which have the same ids."""
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
            "the saved position does not belong to a stream",
            why="resuming from the position would skip or repeat events",
            fix="resume with the data that the run started with",
        )
    return dict(position[OFFSETS])


def merged_offsets(positions: Sequence[Any]) -> dict[str, Any] | None:
    """Return one position for all readers of a stream, merged from their positions; None if there are none.

    The entry with the most events wins: only the reader of a partition advances beyond the common start.
    """
    all_offsets = [place[OFFSETS] for place in positions if isinstance(place, Mapping) and OFFSETS in place]
    if not all_offsets:
        return None
    names = {name for offsets in all_offsets for name in offsets}
    return {
        OFFSETS: {
            name: max((offsets[name] for offsets in all_offsets if name in offsets), key=_count)
            for name in sorted(names)
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
    """Return a log of events as training data, in order and exactly once.

    ```python
    log = satrap.data.streams.FolderLog("s3://events/clicks")
    stream = satrap.data.streams.read_stream(log, schema, follow=True)
    trainer.fit(stream, checkpoint=plan)      # until trainer.request_stop(); resume=True continues
    ```

    Args:
        log: a `FolderLog`, `RedisLog` or `KafkaLog`.
        schema: labels and features; names refer to columns of the log.
        batch_size: samples per batch, default 4096; fewer after `wait` seconds.
        wait: seconds an event waits for its batch to fill, default 1.
        follow: wait for more events at the end of the log; default False: stop there.
        time: column with the time of each event; default none. Hourly metrics use it, see `EventHours`.
        missing: values that mean "missing", see `CsvOptions`.
        bad_events: handling of events with an unusable value. "stop", the default, raises an error that names
            the place. "skip" leaves them out, with a RuntimeWarning for the first, the tenth ...

    Raises:
        ConfigError: invalid settings.
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
