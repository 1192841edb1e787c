"""A folder to which others add files, as a log of events."""

from __future__ import annotations

import posixpath
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from satrap.arguments import checked
from satrap.data.csv import CsvOptions
from satrap.data.dataset import open_files
from satrap.data.files import File, files_in
from satrap.data.source import Origin, Piece, Scan, check_columns
from satrap.data.streams.log import Events, Offsets
from satrap.errors import ConfigError, DataError

SLOTS = 64
"""Partitions of a folder, so that as many workers can share its files."""

POLL_SECONDS = 0.2
"""Between two looks for new files; ten times as long as a look takes, if that is more."""

UNFINISHED = (".tmp", ".inprogress", ".part", ".crc")
"""Endings of files that are still written, or belong to the file system."""


@checked()
@dataclass(frozen=True, slots=True)
class FolderLog:
    """A folder, with subfolders, to which others add files of events. A file never changes once it is there.

    Files are read in the order of their names, those of subfolders by the time in their names too, if they
    begin with it. A new file must come after those of its folder that have been read; so several writers
    have a subfolder each. Write under a name that begins with a dot or ends in .tmp, then rename: such files
    are left out.

    An offset is [file] once that is read, else [file, place, rows after the place].

    Args:
        url: folder or fsspec URL. It may be empty, or not exist, at first.
        format: "csv", "tsv", "parquet" or "arrow"; default by the names.
        csv: how CSV files are written.
    """

    url: str
    format: str | None = None
    csv: CsvOptions | None = None

    @property
    def name(self) -> str:
        """See `Log`."""
        return self.url

    def open(
        self, columns: Sequence[str], texts: Sequence[str], offsets: Offsets, worker: int, workers: int
    ) -> FolderReader:
        """See `Log.open`."""
        if workers > SLOTS:
            raise ConfigError(
                f"{workers} workers cannot share a folder of events",
                why=f"its files are divided into {SLOTS} partitions, and one worker reads a partition",
                fix=f"use at most {SLOTS} workers, or Kafka or Redis streams with more partitions",
            )
        numbers = [name for name in columns if name not in set(texts)]
        return FolderReader(self, Scan(ids=list(texts), numbers=numbers), offsets, worker, workers)


@dataclass(order=True, frozen=True, slots=True)
class _Name:
    """A file: its own name, then its folder, so that the files of subfolders come in turn."""

    name: str
    folder: str
    partition: str = field(compare=False)
    file: File = field(compare=False)


class FolderReader:
    """Reads the files of a worker's partitions; see `LogReader`."""

    def __init__(self, log: FolderLog, scan: Scan, offsets: Offsets, worker: int, workers: int) -> None:
        self._log, self._scan, self._worker, self._workers = log, scan, worker, workers
        self._offsets: dict[str, Sequence[Any]] = dict(offsets)
        self._seen: set[str] = set()
        self._unread: list[_Name] = []  # the next one last
        self._current: tuple[_Name, Iterator[Events]] | None = None
        self._look_at = 0.0  # when to look for new files again
        self._look()

    def read(self, most: int, seconds: float) -> Sequence[Events]:
        """See `LogReader.read`; what a file yields in one piece is returned whole."""
        until = time.monotonic() + seconds
        while True:
            if (events := self._next()) is not None:
                return [events]
            left = until - time.monotonic()
            if left <= 0:
                return []
            time.sleep(min(left, max(0.0, self._look_at - time.monotonic()), 0.05))

    def caught_up(self) -> bool:
        """See `LogReader.caught_up`."""
        self._look()
        return self._current is None and not self._unread

    def close(self) -> None:
        """See `LogReader.close`."""
        self._current = None

    def _next(self) -> Events | None:
        if time.monotonic() >= self._look_at:
            self._look()
        while True:
            if self._current is None:
                if not self._unread:
                    return None
                name = self._unread.pop()
                self._current = name, self._events(name)
            name, pieces = self._current
            if (events := next(pieces, None)) is not None:
                return events
            self._current = None
            self._offsets[name.partition] = [name.name]

    def _look(self) -> None:
        """Find new files."""
        began, new = time.monotonic(), []
        for inside, file in files_in(self._log.url):
            folder, base = posixpath.split(inside)
            if file.path in self._seen or base.startswith((".", "_")) or base.endswith(UNFINISHED):
                continue
            slot = zlib.crc32(base.encode()) % SLOTS
            if slot % self._workers != self._worker:
                continue
            new.append(_Name(base, folder, posixpath.join(folder, f"{slot:02d}"), file))
        first = not self._seen
        for one in new:
            self._seen.add(one.file.path)
            offset = self._offsets.get(one.partition)
            if offset is None or one.name > offset[0] or (one.name == offset[0] and len(offset) > 1):
                self._unread.append(one)
            elif not first:
                raise DataError(
                    f"a file came late: {one.name} sorts before {offset[0]}, which has been read",
                    where=one.file.name,
                    why="its events would be left out: files are read in the order of their names",
                    fix="give it a later name; let each of several writers have a subfolder of its own",
                )
        self._unread.sort(reverse=True)
        ended = time.monotonic()
        self._look_at = ended + max(POLL_SECONDS, 10 * (ended - began))
        if first:
            self._check_there()

    def _check_there(self) -> None:
        """Raise `DataError` if a file is gone in whose middle reading is to go on."""
        there = {(one.partition, one.name) for one in self._unread}
        for partition, offset in self._offsets.items():
            own = int(partition[-2:]) % self._workers == self._worker
            if not own or len(offset) == 1 or (partition, offset[0]) in there:
                continue
            first = min((name for other, name in there if other == partition), default="none")
            raise DataError(
                f"the file {offset[0]} is gone, of which {offset[2]:,} rows after place {offset[1]} were "
                f"read; the first one there is {first}",
                where=self._log.url,
                why="the rest of its events would be left out",
                fix="bring the file back, or start a new run",
            )

    def _events(self, name: _Name) -> Iterator[Events]:
        """Yield the events of a file that are left."""
        offset = self._offsets.get(name.partition)
        cursor, skip = None, 0
        if offset is not None and offset[0] == name.name:
            _, cursor, skip = offset
        source = open_files([name.file], format=self._log.format, csv=self._log.csv)
        check_columns(self._scan.names, source.names, name.file.name)
        pieces = source.scan(self._scan, cursor)
        piece = next(pieces, None)
        while piece is not None:
            following = next(pieces, None)  # to know which one is the last
            rows = piece.table.num_rows
            if skip < rows:
                yield _events_of(name, piece, skip, last=following is None)
            skip, piece = max(skip - rows, 0), following


def _events_of(name: _Name, piece: Piece, skip: int, *, last: bool) -> Events:
    """Return the events of a piece of a file without the first `skip`."""
    rows = piece.table.num_rows

    def after(count: int) -> list[Any]:
        if last and skip + count == rows:
            return [name.name]
        return [name.name, piece.cursor, skip + count]

    origin = Origin(piece.origin.file, piece.origin.rows[skip:])
    return Events(name.partition, piece.table.slice(skip), origin, after)
