"""Delayed labels in a separate log, joined to events after a waiting window."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from satrap.data.encode.hashing import hash_ids
from satrap.data.encode.times import to_seconds
from satrap.data.formats.columns import as_array, to_floats
from satrap.data.streams.log import Events, Log, LogReader, Offsets
from satrap.errors import ConfigError, DataError
from satrap.runtime.arguments import checked
from satrap.schema import Schema

LABELS_AT_ONCE = 10_000
"""Labels read at once."""

LOOK_SECONDS = 0.2
"""Interval between reads of the label log."""

POLL_SECONDS = 0.02
"""Polling interval while no event is due."""


@checked()
@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledLog:
    """A log of events joined with a second log of labels that arrive up to `window` seconds after an event.

    An event is emitted `window` seconds after its time, when all labels that have arrived by then are known;
    an event without labels gets 0. Positive and negative events therefore keep their order and have the same
    delay. Only labels are buffered, each until the events it may belong to have been read; events wait in the
    log. Every worker reads all labels.

    An offset is [offset of the event log, {partition of the label log: [labels read, offset]}].

    Args:
        events: the log of events, without labels.
        labels: the log of labels, with columns of the schema's labels: 0 or 1; null means no value. If an
            event has several labels, the largest counts.
        id: column in both logs that matches labels to events.
        time: column of times in both logs.
        window: seconds.
        schema: a schema whose labels are 0 or 1.

    Raises:
        ConfigError: a label is not 0 or 1.
    """

    events: Log
    labels: Log
    id: str
    time: str
    window: float
    schema: Schema

    def __post_init__(self) -> None:
        for label in self.schema.labels:
            if label.kind != "binary" or label.positive or label.mask:
                raise ConfigError(
                    f"label {label.name!r} cannot be delayed",
                    why="an event without a label gets 0, so delayed labels must be columns of 0 and 1",
                    fix="write labels as 0 and 1, without positive and mask, or remove label_window",
                )
        if not 0 < self.window < float("inf"):
            raise ConfigError(f"label_window must be a number of seconds above 0, got {self.window}")

    @property
    def name(self) -> str:
        """See `Log`."""
        return f"{self.events.name} with labels of {self.labels.name}"

    @property
    def columns(self) -> list[str]:
        """Columns of the labels."""
        return [label.column or label.name for label in self.schema.labels]

    def open(
        self, columns: Sequence[str], texts: Sequence[str], offsets: Offsets, worker: int, workers: int
    ) -> LabelledReader:
        """See `Log.open`."""
        return LabelledReader(self, columns, texts, offsets, worker, workers)


@dataclass(slots=True)
class _Waiting:
    """Waiting events of a partition, their times, and the number of events already emitted."""

    events: Events
    times: npt.NDArray[np.float64]
    done: int = 0


class LabelledReader:
    """Reader of events with their labels; see `LogReader`."""

    def __init__(
        self,
        log: LabelledLog,
        columns: Sequence[str],
        texts: Sequence[str],
        offsets: Offsets,
        worker: int,
        workers: int,
    ) -> None:
        self._log, self._columns = log, columns
        event_columns = [*(name for name in columns if name not in log.columns), log.id, log.time]
        as_they_are = [*(name for name in texts if name not in log.columns), log.id, log.time]
        event_offsets = {name: offset[0] for name, offset in offsets.items()}
        self._events = log.events.open(
            _once(event_columns), _once(as_they_are), event_offsets, worker, workers
        )
        self._labels = _Labels(log, [offset[1] for offset in offsets.values()])
        self._waiting: deque[_Waiting] = deque()
        self._read_to: dict[str, float] = {}  # partition -> time of the last emitted event

    def read(self, most: int, seconds: float) -> Sequence[Events]:
        """See `LogReader.read`."""
        until = time.monotonic() + seconds
        while True:
            held = sum(waiting.events.table.num_rows - waiting.done for waiting in self._waiting)
            if held < most:
                self._waiting.extend(map(self._timed, self._events.read(most - held, 0.0)))
            looked = self._labels.look()
            if due := self._due():
                return due
            if looked:
                self._forget()
            remaining = until - time.monotonic()
            if remaining <= 0:
                return []
            time.sleep(min(remaining, POLL_SECONDS))

    def caught_up(self) -> bool:
        """See `LogReader.caught_up`; events whose window has not passed do not count."""
        return self._events.caught_up() and self._labels.complete

    def close(self) -> None:
        """See `LogReader.close`."""
        self._events.close()
        self._labels.close()

    def _timed(self, events: Events) -> _Waiting:
        return _Waiting(events, _seconds(events, self._log.time, self._log.events.name))

    def _due(self) -> list[Events]:
        """Return events whose window has passed, up to the first waiting event of each partition."""
        limit = self._labels.complete_to - self._log.window
        blocked, due, waiting = set[str](), list[Events](), deque[_Waiting]()
        for events in self._waiting:
            name = events.events.partition
            late = np.flatnonzero(events.times[events.done :] > limit)
            count = 0 if name in blocked else int(late[0]) if len(late) else len(events.times) - events.done
            if count:
                due.append(self._labelled(events, count))
                self._read_to[name] = float(events.times[events.done : events.done + count].max())
                events.done += count
            if events.done < len(events.times):
                blocked.add(name)
                waiting.append(events)
        self._waiting = waiting
        return due

    def _forget(self) -> None:
        """Drop labels of events that have been read; a label may precede its event by up to a window."""
        until = min(self._read_to.values(), default=-np.inf)
        if self._events.caught_up():  # new and waiting events are later
            until = max(until, self._labels.complete_to - self._log.window)
        self._labels.forget(until - self._log.window)

    def _labelled(self, one: _Waiting, count: int) -> Events:
        """Return the next events with their labels."""
        table, start = one.events.table.slice(one.done, count), one.done
        values = self._labels.of(_ids(table.column(self._log.id)))
        arrays = {name: table.column(name) for name in table.column_names}
        arrays |= {name: pa.array(values[:, i]) for i, name in enumerate(self._log.columns)}
        rows, starts = one.events.origin.rows[start : start + count], self._labels.starts()
        return replace(
            one.events,
            table=pa.table({name: arrays[name] for name in self._columns}),
            origin=replace(one.events.origin, rows=rows),
            after=lambda taken: [one.events.after(start + taken), starts],
        )


class _Labels:
    """Labels received so far, by the hashed id of their event.

    Attributes:
        complete: whether the last read reached the end of the log.
        complete_to: time of the last such read; all earlier labels have been received.
    """

    def __init__(self, log: LabelledLog, starts: Sequence[dict[str, list[Any]]]) -> None:
        self._log, self._known = log, dict[int, tuple[float, npt.NDArray[np.float64]]]()
        self._next: dict[str, list[Any]] = {}
        for offsets_by_partition in starts:  # take the earliest: reading a label twice is harmless
            for name, entry in offsets_by_partition.items():
                if name not in self._next or entry[0] < self._next[name][0]:
                    self._next[name] = entry
        offsets = {name: entry[1] for name, entry in self._next.items()}
        names = _once([*log.columns, log.id, log.time])
        self._reader: LogReader = log.labels.open(names, [log.id, log.time], offsets, 0, 1)
        self._pieces: deque[tuple[float, str, list[Any], npt.NDArray[np.uint64]]] = deque()
        self.complete, self.complete_to, self._looked_at = False, -np.inf, -np.inf

    def look(self) -> bool:
        """Read all available labels if `LOOK_SECONDS` have passed; return whether they have."""
        if time.monotonic() - self._looked_at < LOOK_SECONDS:
            return False
        now = time.time()
        while pieces := self._reader.read(LABELS_AT_ONCE, 0.0):
            for events in pieces:
                self._add(events)
        self.complete = self._reader.caught_up()
        if self.complete:
            self.complete_to = max(self.complete_to, now)
        self._looked_at = time.monotonic()
        return True

    def _add(self, events: Events) -> None:
        table = events.table
        if not table.num_rows:
            return
        ids, times = _ids(table.column(self._log.id)), _seconds(events, self._log.time, self._log.labels.name)
        values = np.stack([_numbers(table.column(name)) for name in self._log.columns], 1)
        before = self._next.get(events.partition, [0, None])
        last = float(times.max())
        self._pieces.append((last, events.partition, before, ids))
        self._next[events.partition] = [before[0] + len(ids), events.after(len(ids))]
        for number, row in zip(ids.tolist(), values, strict=True):
            then, labels = self._known.get(number, (-np.inf, row))
            self._known[number] = max(then, last), np.maximum(labels, row)

    def of(self, ids: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
        """Return the labels of events, float64[n, labels]; 0 without a label."""
        nothing = 0.0, np.zeros(len(self._log.columns))
        return np.stack([self._known.get(number, nothing)[1] for number in ids.tolist()])

    def forget(self, until: float) -> None:
        """Drop labels older than a time, because their events have all been read."""
        while self._pieces and self._pieces[0][0] < until:
            for number in self._pieces.popleft()[3].tolist():
                if self._known.get(number, (until, None))[0] < until:
                    del self._known[number]

    def starts(self) -> dict[str, list[Any]]:
        """Return the offsets from which a resumed reader must read labels for later events."""
        starts = dict(self._next)
        for _, name, before, _ in reversed(self._pieces):
            starts[name] = before
        return {name: entry for name, entry in starts.items() if entry[0]}

    def close(self) -> None:
        """Close the reader of the log."""
        self._reader.close()


def _once(names: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _ids(column: pa.ChunkedArray) -> npt.NDArray[np.uint64]:
    return hash_ids(as_array(column), 0)


def _numbers(column: pa.ChunkedArray) -> npt.NDArray[np.float64]:
    return np.nan_to_num(to_floats(as_array(column)), nan=0.0)


def _seconds(events: Events, column: str, where: str) -> npt.NDArray[np.float64]:
    """Return the times of events; `DataError` for a value that is not a time."""
    try:
        seconds = to_seconds(as_array(events.table.column(column)))
    except pa.ArrowInvalid as error:
        raise DataError(f"column {column!r} has a value that is not a time: {error}", where=where) from error
    missing = np.flatnonzero(np.isnan(seconds))
    if len(missing):
        raise DataError(
            "an event has no time",
            where=events.origin.at(int(missing[0]), column),
            why="the time determines how long an event waits for its label",
            fix="write a time for each event and label",
        )
    return seconds
