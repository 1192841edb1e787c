"""A folder to which other programs add files, as a log of events."""

from __future__ import annotations

import posixpath
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from satrap.data.dataset import open_files
from satrap.data.formats.csv import CsvOptions
from satrap.data.formats.files import File, files_in
from satrap.data.source import Origin, Scan, ScanPiece, check_columns
from satrap.data.streams.log import Events, Offsets
from satrap.errors import ConfigError, DataError
from satrap.runtime.arguments import checked

SLOTS = 64
"""Partitions of a folder, and so the most workers that can share its files."""

POLL_SECONDS = 0.2
"""Interval between scans for new files, or ten times the duration of a scan if that is longer."""

UNFINISHED = (".tmp", ".inprogress", ".part", ".crc")
"""Suffixes of files that are still being written or belong to the file system."""


@checked()
@dataclass(frozen=True, slots=True)
class FolderLog:
    """A folder, with subfolders, to which other programs add files of events. A file must never change.

    Files are read in order of their names; names that begin with a time order files across subfolders. A new
    file must sort after the files of its folder that have been read, so each of several writers needs its own
    subfolder. Write to a name that begins with a dot or ends in .tmp, then rename: such files are skipped.

    An offset is [file] once the file has been read, else [file, cursor, rows after the cursor].

    Args:
        url: folder or fsspec URL. It may be empty or missing at first.
        format: "csv", "tsv", "parquet" or "arrow"; default: by file name.
        csv: format of CSV files.
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
                why=f"a folder's files form {SLOTS} partitions, and each partition is read by one worker",
                fix=f"use at most {SLOTS} workers, or Kafka or Redis streams with more partitions",
            )
        numbers = [name for name in columns if name not in set(texts)]
        return FolderReader(self, Scan(ids=list(texts), numbers=numbers), offsets, worker, workers)


@dataclass(order=True, frozen=True, slots=True)
class _Name:
    """A file, ordered by name before folder, so that files of subfolders alternate."""

    name: str
    folder: str
    partition: str = field(compare=False)
    file: File = field(compare=False)


class FolderReader:
    """Reader of a worker's partitions; see `LogReader`."""

    def __init__(self, log: FolderLog, scan: Scan, offsets: Offsets, worker: int, workers: int) -> None:
        self._log, self._scan, self._worker, self._workers = log, scan, worker, workers
        self._offsets: dict[str, Sequence[Any]] = dict(offsets)
        self._seen: set[str] = set()
        self._unread: list[_Name] = []  # the next file is last
        self._current: tuple[_Name, Iterator[Events]] | None = None
        self._look_at = 0.0  # time of the next scan for new files
        self._look()

    def read(self, most: int, seconds: float) -> Sequence[Events]:
        """See `LogReader.read`; a piece of a file is never split."""
        until = time.monotonic() + seconds
        while True:
            if (events := self._next()) is not None:
                return [events]
            remaining = until - time.monotonic()
            if remaining <= 0:
                return []
            time.sleep(min(remaining, max(0.0, self._look_at - time.monotonic()), 0.05))

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
        for file_name in new:
            self._seen.add(file_name.file.path)
            offset = self._offsets.get(file_name.partition)
            if (
                offset is None
                or file_name.name > offset[0]
                or (file_name.name == offset[0] and len(offset) > 1)
            ):
                self._unread.append(file_name)
            elif not first:
                raise DataError(
                    f"a file arrived late: {file_name.name} sorts before {offset[0]}, which has been read",
                    where=file_name.file.name,
                    why="files are read in order of their names, so the late file's events would be lost",
                    fix="give the file a later name, and each of several writers its own subfolder",
                )
        self._unread.sort(reverse=True)
        ended = time.monotonic()
        self._look_at = ended + max(POLL_SECONDS, 10 * (ended - began))
        if first:
            self._check_there()

    def _check_there(self) -> None:
        """Raise `DataError` if a partially read file no longer exists."""
        there = {(unread.partition, unread.name) for unread in self._unread}
        for partition, offset in self._offsets.items():
            is_mine = int(partition[-2:]) % self._workers == self._worker
            if not is_mine or len(offset) == 1 or (partition, offset[0]) in there:
                continue
            first = min((name for other, name in there if other == partition), default="none")
            raise DataError(
                f"the file {offset[0]} is missing; {offset[2]:,} of its rows after cursor {offset[1]} were "
                f"read, and the first file now is {first}",
                where=self._log.url,
                why="the remaining events of the missing file would be lost",
                fix="restore the file, or start a new run",
            )

    def _events(self, name: _Name) -> Iterator[Events]:
        """Yield the unread events of a file."""
        offset = self._offsets.get(name.partition)
        cursor, skip = None, 0
        if offset is not None and offset[0] == name.name:
            _, cursor, skip = offset
        source = open_files([name.file], format=self._log.format, csv=self._log.csv)
        check_columns(self._scan.names, source.names, name.file.name)
        pieces = source.scan(self._scan, cursor)
        piece = next(pieces, None)
        while piece is not None:
            following = next(pieces, None)  # to detect the last piece
            rows = piece.table.num_rows
            if skip < rows:
                yield _events_of(name, piece, skip, last=following is None)
            skip, piece = max(skip - rows, 0), following


def _events_of(name: _Name, piece: ScanPiece, skip: int, *, last: bool) -> Events:
    """Return the events of a piece of a file, except the first `skip`."""
    rows = piece.table.num_rows

    def after(count: int) -> list[Any]:
        if last and skip + count == rows:
            return [name.name]
        return [name.name, piece.cursor, skip + count]

    origin = Origin(piece.origin.file, piece.origin.rows[skip:])
    return Events(name.partition, piece.table.slice(skip), origin, after)
