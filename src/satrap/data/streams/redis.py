"""Redis streams as a log of events."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from satrap.data.streams.columns import EventOrigin, table_of
from satrap.data.streams.log import Events, Offsets
from satrap.errors import ConfigError, DataError
from satrap.runtime.arguments import checked

if TYPE_CHECKING:
    from redis import Redis

POLL_SECONDS = 0.02
"""Interval between checks for new entries."""

PATIENCE = 60.0
"""Seconds of retries while the server does not respond, for example during a restart."""


@checked()
@dataclass(frozen=True, slots=True)
class RedisLog:
    """Streams of a Redis server, 7 or newer: each is a partition, and the fields of an entry are the columns.

    A server with `appendonly yes` and `appendfsync always` does not lose acknowledged entries. Trim a stream
    (XTRIM) only up to the entries that have been read. An offset is [id of the last entry read, entries
    in the stream up to that id].

    Needs `pip install 'satrap[redis]'`.

    Args:
        url: URL of the server, such as redis://localhost:6379/0.
        streams: keys of the streams.
    """

    url: str
    streams: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.streams or len(set(self.streams)) < len(self.streams):
            raise ConfigError("redis: give the keys of at least one stream, without duplicates")

    @property
    def name(self) -> str:
        """See `Log`."""
        return f"{self.server}, {', '.join(self.streams)}"

    @property
    def server(self) -> str:
        """URL without user and password, for messages."""
        return self.url.rpartition("@")[2]

    def open(
        self, columns: Sequence[str], texts: Sequence[str], offsets: Offsets, worker: int, workers: int
    ) -> RedisReader:
        """See `Log.open`."""
        return RedisReader(self, columns, offsets, self.streams[worker::workers])


class RedisReader:
    """Reader of a worker's streams; see `LogReader`."""

    def __init__(
        self, log: RedisLog, columns: Sequence[str], offsets: Offsets, streams: Sequence[str]
    ) -> None:
        self._log, self._columns = log, columns
        self._next: dict[str, tuple[str, int | None]] = {
            name: tuple(offsets.get(name, ("0-0", None))) for name in streams
        }
        self._last: dict[str, str] = {}  # stream -> its newest id
        self._away_since: float | None = None  # when the server stopped responding
        self._server = _connected(log.url)

    def read(self, most: int, seconds: float) -> Sequence[Events]:
        """See `LogReader.read`."""
        until = time.monotonic() + seconds
        while self._next:
            if events := self._look(most):
                return events
            remaining = until - time.monotonic()
            if remaining <= 0:
                return []
            time.sleep(min(remaining, POLL_SECONDS))
        time.sleep(seconds)  # fewer streams than workers
        return []

    def caught_up(self) -> bool:
        """See `LogReader.caught_up`; as of the last `read`."""
        return self._away_since is None and all(
            _key(last) <= _key(self._next[name][0]) for name, last in self._last.items()
        )

    def close(self) -> None:
        """See `LogReader.close`."""
        self._server.close()

    def _look(self, most: int) -> list[Events]:
        """Return the next available entries of all streams; none while the server is unavailable."""
        if (answer := self._asked(most)) is None:
            return []
        state, entries = answer
        pieces = []
        for name, about in state.items():
            last, number = self._next[name]
            if about is None:
                if last != "0-0":
                    raise self._lost(name, "the stream does not exist any more")
                continue
            removed = about["entries-added"] - about["length"]
            self._last[name] = _decoded(about["last-generated-id"])
            if number is None:
                number = removed
            elif removed > number:
                raise self._lost(
                    name, f"{removed - number:,} later entries were removed, and {_first(about)} is the first"
                )
            if _key(self._last[name]) < _key(last):
                raise self._lost(name, f"the newest entry is {self._last[name]}")
            self._next[name] = last, number
            if name in entries:
                pieces.append(self._events(name, entries[name]))
        return pieces

    def _asked(self, most: int) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Return the server's state of each stream, None if a stream is missing, and its next entries.

        Both come from one transaction, so entries cannot be trimmed in between unnoticed. Return None while
        the server is unavailable, so that other workers need not wait; `DataError` after `PATIENCE` seconds.
        """
        from redis import RedisError
        from redis.exceptions import ConnectionError, ResponseError, TimeoutError

        pipe = self._server.pipeline(transaction=True)
        for name in self._next:
            pipe.xinfo_stream(name)
        count = max(most // len(self._next), 1)  # equal parts, so that all streams advance
        pipe.xread({name: last for name, (last, _) in self._next.items()}, count=count)
        try:
            *about, read = pipe.execute(raise_on_error=False)
            for answer in (*about, read):
                if isinstance(answer, RedisError) and "no such key" not in str(answer):
                    raise answer
        except (ConnectionError, TimeoutError) as error:
            self._away_since = self._away_since or time.monotonic()
            if time.monotonic() - self._away_since > PATIENCE:
                raise self._failed(error) from error
            return None
        except RedisError as error:
            raise self._failed(error) from error
        self._away_since = None
        state = {
            name: None if isinstance(response, ResponseError) else response
            for name, response in zip(self._next, about, strict=True)
        }
        return state, dict(_entries(read))

    def _events(self, name: str, entries: Sequence[tuple[bytes, dict[bytes, bytes]]]) -> Events:
        where = f"{self._log.server}, stream {name}"
        ids = [_decoded(number) for number, _ in entries]
        try:
            events = [{k.decode(): v.decode() for k, v in values.items()} for _, values in entries]
        except UnicodeDecodeError as error:
            raise DataError(f"an entry between {ids[0]} and {ids[-1]} is not UTF-8", where=where) from error
        number = self._next[name][1]
        assert number is not None
        first = number
        self._next[name] = ids[-1], first + len(ids)
        origin = EventOrigin(where, np.arange(len(ids)), ids)
        table = table_of(events, self._columns, where)
        return Events(name, table, origin, lambda count: [ids[count - 1], first + count])

    def _lost(self, name: str, found: str) -> DataError:
        return DataError(
            f"entries after {self._next[name][0]} are missing: {found}",
            where=f"{self._log.server}, stream {name}",
            why="the missing events would be skipped",
            fix="restore the stream, for example from the server's append-only file; or start a new run",
        )

    def _failed(self, error: Exception) -> DataError:
        return DataError(
            f"the Redis server cannot be read: {error}",
            where=self._log.server,
            fix="start the server or correct data.stream.redis, then resume",
        )


def _connected(url: str) -> Redis:
    try:
        from redis import Redis
    except ImportError as error:
        raise ConfigError(
            "reading Redis streams needs the package redis", fix="pip install 'satrap[redis]'"
        ) from error
    try:
        return Redis.from_url(url, socket_timeout=5.0, socket_connect_timeout=2.0)
    except ValueError as error:
        raise ConfigError(f"{url!r} is not the URL of a Redis server: {error}") from error


def _entries(read: Any) -> list[tuple[str, Any]]:
    """Return (stream, entries) of an answer to XREAD, in either protocol version."""
    if not read:
        return []
    if isinstance(read, dict):
        return [(_decoded(name), entries[0]) for name, entries in read.items()]
    return [(_decoded(name), entries) for name, entries in read]


def _decoded(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _key(number: str) -> tuple[int, int]:
    """Return an id such as 1700000000000-0 as numbers, which sort in the same order."""
    milliseconds, _, sequence = number.partition("-")
    return int(milliseconds), int(sequence or 0)


def _first(about: dict[str, Any]) -> str:
    first = about.get("first-entry")
    return "none" if not first else _decoded(first[0])
