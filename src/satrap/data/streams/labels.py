"""Labels that come later, in a log of their own: events wait for them, and then have them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from satrap.arguments import checked
from satrap.data.columns import as_array, to_floats
from satrap.data.hashing import hash_ids
from satrap.data.streams.log import Events, Log, LogReader, Offsets
from satrap.data.times import to_seconds
from satrap.errors import ConfigError, DataError
from satrap.schema import Schema

LABELS_AT_ONCE = 10_000
"""Labels read at once."""

LOOK_SECONDS = 0.2
"""Between two looks for labels."""

POLL_SECONDS = 0.02
"""Between two looks for labels and events while nothing is due."""


@checked()
@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledLog:
    """A log of events, each with the labels that a second log has for it `window` seconds after its time.

    An event is read `window` seconds after its time, when all labels that have come by then are known;
    without one its labels are 0. So positive and negative events come in the same order and with the same
    delay, and the log is the memory: only labels are held here, each until the events that it may belong to
    have been read. Every worker reads all labels.

    An offset is [offset of the events' log, {partition of the labels' log: [labels read, offset]}].

    Args:
        events: the log of events, without labels.
        labels: the log of labels, with columns of the schema's labels: 0 or 1; null means nothing. Of several
            labels for an event, the largest counts.
        id: column of both that says which label belongs to which event.
        time: column of both with times.
        window: seconds.
        schema: with labels that are 0 or 1.

    Raises:
        ConfigError: a label is of another kind.
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
                    f"label {label.name!r} cannot come later",
                    why="an event without a label is one with 0, so labels are columns of 0 and 1",
                    fix="write labels as 0 and 1, without positive and mask, or leave label_window out",
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
    """Events of a partition that wait, the time of each, and how many of them have been given out."""

    events: Events
    times: npt.NDArray[np.float64]
    done: int = 0


class LabelledReader:
    """Reads events with their labels; see `LogReader`."""

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
        wanted = [*(name for name in columns if name not in log.columns), log.id, log.time]
        as_they_are = [*(name for name in texts if name not in log.columns), log.id, log.time]
        own = {name: offset[0] for name, offset in offsets.items()}
        self._events = log.events.open(_once(wanted), _once(as_they_are), own, worker, workers)
        self._labels = _Labels(log, [offset[1] for offset in offsets.values()])
        self._waiting: deque[_Waiting] = deque()
        self._read_to: dict[str, float] = {}  # partition -> time of the last event given out

    def read(self, most: int, seconds: float) -> Sequence[Events]:
        """See `LogReader.read`."""
        until = time.monotonic() + seconds
        while True:
            held = sum(one.events.table.num_rows - one.done for one in self._waiting)
            if held < most:
                self._waiting.extend(self._timed(one) for one in self._events.read(most - held, 0.0))
            looked = self._labels.look()
            if found := self._due():
                return found
            if looked:
                self._forget()
            left = until - time.monotonic()
            if left <= 0:
                return []
            time.sleep(min(left, POLL_SECONDS))

    def caught_up(self) -> bool:
        """See `LogReader.caught_up`; events whose window has not passed are not there yet."""
        return self._events.caught_up() and self._labels.complete

    def close(self) -> None:
        """See `LogReader.close`."""
        self._events.close()
        self._labels.close()

    def _timed(self, events: Events) -> _Waiting:
        return _Waiting(events, _seconds(events, self._log.time, self._log.events.name))

    def _due(self) -> list[Events]:
        """Return the events whose window has passed: of each partition those before the first that waits."""
        limit = self._labels.complete_to - self._log.window
        blocked, found, left = set[str](), list[Events](), deque[_Waiting]()
        for one in self._waiting:
            name = one.events.partition
            late = np.flatnonzero(one.times[one.done :] > limit)
            count = 0 if name in blocked else int(late[0]) if len(late) else len(one.times) - one.done
            if count:
                found.append(self._labelled(one, count))
                self._read_to[name] = float(one.times[one.done : one.done + count].max())
                one.done += count
            if one.done < len(one.times):
                blocked.add(name)
                left.append(one)
        self._waiting = left
        return found

    def _forget(self) -> None:
        """Forget labels of events that have been read; a label may be up to a window before its event."""
        until = min(self._read_to.values(), default=-np.inf)
        if self._events.caught_up():  # what comes, and what waits, is later
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
    """The labels that have come, by the hashed id of their event.

    Attributes:
        complete: whether everything that was in the log at the last look has been read.
        complete_to: the time of the last such look; what happened before has come.
    """

    def __init__(self, log: LabelledLog, starts: Sequence[dict[str, list[Any]]]) -> None:
        self._log, self._known = log, dict[int, tuple[float, npt.NDArray[np.float64]]]()
        self._next: dict[str, list[Any]] = {}
        for one in starts:  # the earliest of each partition: reading a label again changes nothing
            for name, entry in one.items():
                if name not in self._next or entry[0] < self._next[name][0]:
                    self._next[name] = entry
        offsets = {name: entry[1] for name, entry in self._next.items()}
        names = _once([*log.columns, log.id, log.time])
        self._reader: LogReader = log.labels.open(names, [log.id, log.time], offsets, 0, 1)
        self._pieces: deque[tuple[float, str, list[Any], npt.NDArray[np.uint64]]] = deque()
        self.complete, self.complete_to, self._looked_at = False, -np.inf, -np.inf

    def look(self) -> bool:
        """Read all labels that are there, if it is time; return whether it was."""
        if time.monotonic() - self._looked_at < LOOK_SECONDS:
            return False
        now = time.time()
        while found := self._reader.read(LABELS_AT_ONCE, 0.0):
            for events in found:
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
            then, known = self._known.get(number, (-np.inf, row))
            self._known[number] = max(then, last), np.maximum(known, row)

    def of(self, ids: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
        """Return the labels of events, float64[n, labels]: 0 where none has come."""
        nothing = 0.0, np.zeros(len(self._log.columns))
        return np.stack([self._known.get(number, nothing)[1] for number in ids.tolist()])

    def forget(self, until: float) -> None:
        """Forget labels of before a time: no event that they belong to will be read."""
        while self._pieces and self._pieces[0][0] < until:
            for number in self._pieces.popleft()[3].tolist():
                if self._known.get(number, (until, None))[0] < until:
                    del self._known[number]

    def starts(self) -> dict[str, list[Any]]:
        """Return from where the labels are to be read again that later events may need."""
        found = dict(self._next)
        for _, name, before, _ in reversed(self._pieces):
            found[name] = before
        return {name: entry for name, entry in found.items() if entry[0]}

    def close(self) -> None:
        """Release the log."""
        self._reader.close()


def _once(names: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _ids(column: pa.ChunkedArray) -> npt.NDArray[np.uint64]:
    return hash_ids(as_array(column), 0)


def _numbers(column: pa.ChunkedArray) -> npt.NDArray[np.float64]:
    return np.nan_to_num(to_floats(as_array(column)), nan=0.0)


def _seconds(events: Events, column: str, where: str) -> npt.NDArray[np.float64]:
    """Return the times of events; `DataError` for what is none."""
    try:
        found = to_seconds(as_array(events.table.column(column)))
    except pa.ArrowInvalid as error:
        raise DataError(f"column {column!r} has a value that is no time: {error}", where=where) from error
    missing = np.flatnonzero(np.isnan(found))
    if len(missing):
        raise DataError(
            "an event has no time",
            where=events.origin.at(int(missing[0]), column),
            why="how long it waits for its label depends on it",
            fix="write the time of each event and label",
        )
    return found
