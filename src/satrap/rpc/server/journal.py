"""The journal of a server: every request it executes, on disk before its response is sent.

A folder holds segments, which are files of records; a new segment begins with each snapshot. A record is the
message as received, so its checksums protect it on disk as well.

```
segment   8s magic "STRPJRNL", u32 version, u32 reserved, u64 number, u64 step + 1 of the snapshot it
          continues (0: the start of the run), u64 number of its first record, u32 CRC-32 of all that; records
record    4s magic "SREC", u32 parts, u64 number, u64 bytes that follow, u32 CRC-32 of all that;
          header of the message (`frames`), parts' sizes u64 each, parts
```

Records are written with one call and not synced. They survive the death of the process at any instant,
because the operating system has them. They do not survive the loss of the machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from satrap.errors import CheckpointError, ConfigError, StoreError
from satrap.rpc.wire.frames import HEADER_BYTES, Buffer, FrameError, Header, decode, size_of
from satrap.runtime import fault_points

MAGIC, VERSION = b"STRPJRNL", 3
RECORD = b"SREC"
_SEGMENT = struct.Struct("<8sIIQQQ")
_RECORD = struct.Struct("<4sIQQ")
_CHECK = struct.Struct("<I")
_SIZE = struct.Struct("<Q")
SEGMENT_BYTES, RECORD_BYTES = _SEGMENT.size + _CHECK.size, _RECORD.size + _CHECK.size
_KIND = 6
"""Offset of the kind in a message's header."""
_MOST = 1 << 40
_VECTORS = 512
"""Buffers one call may write."""


@dataclass(slots=True)
class JournalSegment:
    """One file of a journal.

    Args:
        path: path of the file.
        number: from 0.
        step: the snapshot after which it begins; None: it begins with the run.
        first: number of its first record.
        kinds: kind of message -> number of records.
        end: bytes up to the end of the last whole record.
    """

    path: Path
    number: int
    step: int | None
    first: int
    kinds: Counter[int] = field(default_factory=Counter)
    end: int = SEGMENT_BYTES

    @property
    def records(self) -> int:
        """Number of records."""
        return self.kinds.total()


class Journal:
    """Appends requests, and reads them back after the process has died.

    Opening it cuts off an unfinished last record, whose request was never answered.

    Args:
        folder: folder of this server alone; created if missing. A second process is rejected.
        limit: bytes of all segments together, None: no limit; a request beyond it is rejected.

    Attributes:
        segments: oldest first.

    Raises:
        CheckpointError: the journal is damaged before its end, or cannot be read.
        ConfigError: another process uses the folder, or it cannot be created.
    """

    def __init__(self, folder: Path, *, limit: int | None = None) -> None:
        self.folder, self.limit = folder, limit
        self._broken, self._last = False, (0, 0)
        try:
            with contextlib.ExitStack() as failed:
                self._lock = _lock(folder)
                failed.callback(os.close, self._lock)
                self.segments = _segments(folder) or [_create(folder, 0, None, 0, b"", ())]
                self._file = os.open(self.segments[-1].path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
                os.ftruncate(self._file, self.segments[-1].end)
                failed.pop_all()
        except OSError as error:
            raise ConfigError(f"cannot open the journal: {error.strerror}", where=str(folder)) from error

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.end for segment in self.segments)

    def append(self, head: bytes, parts: Sequence[Buffer]) -> None:
        """Write a message's header and payload; once this returns, the death of the process does not undo it.

        If the disk is full or fails, it raises a `StoreError` and leaves the journal unchanged.
        """
        segment = self.segments[-1]
        data = _record(segment.first + segment.records, head, parts)
        size = size_of(data)
        if self.limit is not None and self.size + size > self.limit:
            raise _refused(segment.path, f"its limit of {self.limit} bytes is reached")
        if self._broken:
            raise _refused(segment.path, "an earlier record could not be removed")
        try:
            fault_points.hit("journal.write")
            _write(self._file, data)
        except OSError as error:
            self._take_back(segment)
            raise _refused(segment.path, error.strerror or str(error)) from error
        fault_points.hit("journal.written")
        segment.end += size
        segment.kinds[head[_KIND]] += 1
        self._last = size, head[_KIND]

    def take_back(self) -> None:
        """Remove the last record, whose request has changed nothing."""
        segment, (size, kind) = self.segments[-1], self._last
        segment.end -= size
        segment.kinds[kind] -= 1
        self._take_back(segment)

    def _take_back(self, segment: JournalSegment) -> None:
        """Cut the file at the segment's end; if that fails, nothing may be written any more."""
        try:
            os.ftruncate(self._file, segment.end)
        except OSError:
            self._broken = True

    def begin(self, head: bytes, parts: Sequence[Buffer]) -> None:
        """Start again with a request: nothing before it will be repeated; raises the errors of `rotate`."""
        self.rotate(None, head, parts)
        self._drop(len(self.segments) - 1)

    def rotate(self, step: int | None, head: bytes, parts: Sequence[Buffer]) -> None:
        """Begin a segment between two requests.

        If the disk is full or fails, it raises a `StoreError` and continues in the old segment.

        Args:
            step: the snapshot at whose cut it begins, or None.
            head, parts: its first message; at a cut the rest of the server's state, as a message of kind 0.
        """
        last = self.segments[-1]
        try:
            made = _create(self.folder, last.number + 1, step, last.first + last.records, head, parts)
            file = os.open(made.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        except OSError as error:
            with contextlib.suppress(OSError):
                _path(self.folder, last.number + 1).unlink()
            raise _refused(self.folder, error.strerror or str(error)) from error
        os.close(self._file)
        self._file = file
        self.segments.append(made)

    def forget(self, step: int) -> None:
        """Delete everything before a snapshot's cut; call it once the manifest is committed."""
        self._drop(next((i for i, s in enumerate(self.segments) if s.step == step), 0))

    def _drop(self, count: int) -> None:
        for segment in self.segments[:count]:
            with contextlib.suppress(OSError):  # a file that stays is deleted next time
                segment.path.unlink()
        del self.segments[:count]

    def since(self, step: int | None) -> Sequence[JournalSegment]:
        """Return the segments from a snapshot's cut on (None: from the start of the run).

        If none begins there, it raises a `CheckpointError`.
        """
        for at, segment in enumerate(self.segments):
            if segment.step == step:
                return self.segments[at:]
        begin = self.segments[0].step
        place = "the start of the run" if step is None else f"the snapshot of step {step}"
        raise CheckpointError(
            f"the journal does not reach back to {place}",
            where=str(self.folder),
            why="requests before the first segment cannot be repeated",
            fix=f"start from the snapshot of step {begin}" if begin is not None else "remove the folder",
        )

    def read(self, segment: JournalSegment, kind: int | None = None) -> Iterator[tuple[Header, list[Buffer]]]:
        """Yield the messages of a segment, all or of one kind; raise a `CheckpointError` at a damaged one."""
        with open(segment.path, "rb") as file:
            at = SEGMENT_BYTES
            for _ in range(segment.records):
                file.seek(at)
                _, count, _, length = _RECORD.unpack_from(file.read(RECORD_BYTES))
                head = file.read(HEADER_BYTES)
                if kind in (None, head[_KIND]):
                    sizes = [size for (size,) in _SIZE.iter_unpack(file.read(8 * count))]
                    if HEADER_BYTES + 8 * count + sum(sizes) != length:
                        raise _damaged(segment.path, at, "the sizes of a record's parts do not add up")
                    parts: list[Buffer] = [file.read(size) for size in sizes]
                    try:
                        header = decode(head, parts, max_bytes=_MOST)
                    except FrameError as error:
                        raise _damaged(segment.path, at, error.what) from error
                    yield header, parts
                at += RECORD_BYTES + length

    def close(self) -> None:
        """Close the files; the folder stays."""
        os.close(self._file)
        os.close(self._lock)


def _lock(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / "lock", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise ConfigError(
            "another process keeps its journal in this folder",
            where=str(folder),
            fix="give each shard its own folder",
        ) from error
    return lock


def _path(folder: Path, number: int) -> Path:
    return folder / f"{number:08d}.journal"


def _create(
    folder: Path, number: int, step: int | None, first: int, head: bytes, parts: Sequence[Buffer]
) -> JournalSegment:
    """Write the start of a segment, and its first record if there is a head."""
    fixed = _SEGMENT.pack(MAGIC, VERSION, 0, number, 0 if step is None else step + 1, first)
    data: list[Buffer] = [fixed + _CHECK.pack(zlib.crc32(fixed))]
    if head:
        data += _record(first, head, parts)
    path = _path(folder, number)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        _write(file, data)
    finally:
        os.close(file)
    kinds = Counter([head[_KIND]] if head else [])
    return JournalSegment(path, number, step, first, kinds, size_of(data))


def _record(number: int, head: bytes, parts: Sequence[Buffer]) -> list[Buffer]:
    views = [memoryview(part).cast("B") for part in parts if memoryview(part).nbytes]
    sizes = b"".join(_SIZE.pack(memoryview(part).nbytes) for part in parts)
    length = HEADER_BYTES + len(sizes) + sum(len(v) for v in views)
    fixed = _RECORD.pack(RECORD, len(parts), number, length)
    return [fixed + _CHECK.pack(zlib.crc32(fixed)) + head + sizes, *views]


def _write(file: int, data: Sequence[Buffer]) -> None:
    remaining = [memoryview(d).cast("B") for d in data]
    while remaining:
        done = os.writev(file, remaining[:_VECTORS])
        while remaining and done >= len(remaining[0]):
            done -= len(remaining.pop(0))
        if done:
            remaining[0] = remaining[0][done:]


def _refused(path: Path, what: str) -> StoreError:
    return StoreError(
        f"the journal cannot be written: {what}",
        where=str(path),
        why="a request that is not in the journal would be lost with the process, so it was not executed",
        fix="free space on the disk, or take snapshots more often: each allows older parts to be deleted",
    )


def _damaged(path: Path, at: int, what: str) -> CheckpointError:
    return CheckpointError(
        f"the journal is damaged: {what}",
        where=f"{path}, byte {at}",
        why="requests after this byte cannot be repeated, so the shard cannot restore its state",
        fix="resume from a snapshot: satrap train --resume",
    )


def _segments(folder: Path) -> list[JournalSegment]:
    """Return the segments of a folder, without an unfinished record or start at the end."""
    segments: list[JournalSegment] = []
    paths = sorted(folder.glob("*.journal"))
    for path in paths:
        segment = _scan(path, last=path == paths[-1])
        if segment is None:  # the process died while it created the file
            path.unlink()
            continue
        if segments and (segment.number, segment.first) != (
            segments[-1].number + 1,
            segments[-1].first + segments[-1].records,
        ):
            raise _damaged(path, 0, f"it does not continue {segments[-1].path.name}")
        segments.append(segment)
    return segments


def _scan(path: Path, *, last: bool) -> JournalSegment | None:
    """Return a segment, read from the heads of its records; None if its start was not finished."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        start = file.read(SEGMENT_BYTES)
        if len(start) < SEGMENT_BYTES and last:
            return None
        if len(start) < SEGMENT_BYTES or start[:8] != MAGIC:
            raise _damaged(path, 0, "the file does not begin as a journal")
        _, version, _, number, step, first = _SEGMENT.unpack_from(start)
        if _CHECK.unpack_from(start, _SEGMENT.size)[0] != zlib.crc32(start[: _SEGMENT.size]):
            raise _damaged(path, 0, "the checksum of the file's start does not match")
        if version != VERSION:
            what = f"the journal has version {version}, but this satrap reads version {VERSION}"
            raise CheckpointError(what, where=str(path))
        segment = JournalSegment(path, number, step - 1 if step else None, first)
        while segment.end < size:
            length = _head(file, segment, size, last)
            if length is None:
                break
            segment.kinds[file.read(HEADER_BYTES)[_KIND]] += 1
            segment.end += RECORD_BYTES + length
            file.seek(segment.end)
    if segment.step is not None and segment.records == 0 and last:
        return None
    return segment


def _head(file: BinaryIO, segment: JournalSegment, size: int, last: bool) -> int | None:
    """Return the length of the next record; None if it is unfinished and nothing follows."""
    head = file.read(RECORD_BYTES)
    if len(head) == RECORD_BYTES:
        magic, parts, number, length = _RECORD.unpack_from(head)
        if magic != RECORD or _CHECK.unpack_from(head, _RECORD.size)[0] != zlib.crc32(head[: _RECORD.size]):
            raise _damaged(segment.path, segment.end, "the checksum of a record's head does not match")
        if number != segment.first + segment.records or not HEADER_BYTES + 8 * parts <= length < _MOST:
            raise _damaged(segment.path, segment.end, f"record {number} is out of order")
        if segment.end + RECORD_BYTES + length <= size:
            return int(length)
    if last:
        return None
    raise _damaged(segment.path, segment.end, "the file ends inside a record")
