"""The files of one folder, local or at an fsspec URL, with a checksum per block."""

import base64
import errno
import io
import posixpath
import re
import shlex
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import IO, Any, Self

import fsspec
import numpy as np
from fsspec.implementations.local import LocalFileSystem

from satrap.checkpoint.files.disk import Disk, LocalDisk, NotPlainError, RemoteDisk, only_os_errors
from satrap.errors import CheckpointError

BLOCK = 1 << 20
"""Bytes that one checksum covers; a reader verifies this many at once."""
LARGE = 1 << 18
"""Writes of at least this many bytes go directly to the disk; smaller writes are collected."""
SYNCS = 4
"""Most files and folders to make durable concurrently."""
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")


def is_plain(name: Any) -> bool:
    """Return whether a name consists of letters, digits, ".", "_" and "-", and is not a path.

    A manifest may come from an untrusted source, so its names must not lead out of its folder.
    """
    return isinstance(name, str) and _PLAIN.fullmatch(name) is not None


def not_plain(name: Any, where: str) -> CheckpointError:
    """Return the error about a name that is not plain."""
    return CheckpointError(
        f"{str(name)[:200]!r} is not a valid file name in a checkpoint",
        where=where,
        why="such a name could lead to a file outside the checkpoint",
        fix="do not use this checkpoint: satrap did not write it",
    )


@dataclass(slots=True)
class FileEntry:
    """The entry of one file in a manifest."""

    bytes: int
    crc32: list[int] = field(default_factory=list)  # of each block of `BLOCK` bytes; the last may be shorter
    table: str = ""  # the table of its rows; empty for other files
    rows: int = 0
    buckets: list[int] = field(default_factory=list)  # [first, end) of the rows' fixed buckets; empty: any

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for the manifest; checksums as base64 of little-endian uint32."""
        sums = base64.b64encode(np.array(self.crc32, "<u4").tobytes()).decode()
        plain: dict[str, Any] = {"bytes": self.bytes, "crc32": sums}
        plain |= {"table": self.table, "rows": self.rows} if self.table else {}
        return plain | ({"buckets": self.buckets} if self.buckets else {})

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        """Build an entry from `to_dict` data; any error but CheckpointError means invalid data."""
        sums = np.frombuffer(base64.b64decode(plain["crc32"], validate=True), "<u4").tolist()
        entry = cls(**{**plain, "crc32": sums})
        numbers = [entry.bytes, entry.rows, *entry.buckets]
        if not all(type(number) is int and 0 <= number < 2**63 for number in numbers):
            raise ValueError("a size, a number of rows or a bucket is invalid")
        if len(sums) != -(-entry.bytes // BLOCK) or len(entry.buckets) not in (0, 2):
            raise ValueError("a file does not have a checksum per block")
        entry.table.encode()
        return entry


class BlockWriter:
    """A binary file that computes checksums of the written data; created by `Storage.writer`."""

    def __init__(self, disk: Disk, raw: Any) -> None:
        self._disk, self._raw = disk, raw
        self._small = bytearray()
        self._crc = self._covered = 0  # checksum of the current block, and the number of bytes it covers
        self.entry = FileEntry(0)
        self.closed = False

    def write(self, data: Any) -> int:
        """Write bytes or a buffer; return the number of bytes. Does not copy large buffers."""
        view = memoryview(data).cast("B")
        self._check(view)
        if len(view) < LARGE:
            self._small += view
        if len(self._small) >= LARGE or len(view) >= LARGE:
            self._pass_on()
        if len(view) >= LARGE:
            self._disk.write(self._raw, view)
        return len(view)

    def _check(self, view: memoryview) -> None:
        """Add bytes to the size of the file and to the checksums of its blocks."""
        self.entry.bytes += len(view)
        while len(view):
            part = view[: BLOCK - self._covered]
            self._crc, self._covered = zlib.crc32(part, self._crc), self._covered + len(part)
            view = view[len(part) :]
            if self._covered == BLOCK:
                self._end_block()

    def _end_block(self) -> None:
        self.entry.crc32.append(self._crc)
        self._crc = self._covered = 0

    def _pass_on(self) -> None:
        if self._small:
            small, self._small = self._small, bytearray()
            self._disk.write(self._raw, memoryview(small))

    def flush(self) -> None:
        """Do nothing: `finish` writes the collected bytes."""

    def finish(self) -> None:
        """Write the collected bytes, and complete the checksums."""
        self._pass_on()
        if self._covered:
            self._end_block()


_BAD = (errno.EIO, getattr(errno, "EUCLEAN", errno.EIO), errno.EBADMSG)
"""Disk errors that mean lost data; after other errors the data may be intact."""


class BlockReader(io.RawIOBase):
    """A file that verifies each block before it returns bytes of it; created by `Storage.open`.

    Reading a damaged block raises CheckpointError, which names file and bytes.
    """

    def __init__(self, disk: Disk, raw: IO[bytes], entry: FileEntry, where: str) -> None:
        self._disk, self._raw, self._entry, self._where = disk, raw, entry, where
        self._number = self._at = 0
        self._block = memoryview(b"")

    def readable(self) -> bool:
        """Return True."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` verified bytes, fewer at the end of the file."""
        parts: list[memoryview] = []
        remaining = self._entry.bytes if size < 0 else size
        while remaining > 0 and (self._at < len(self._block) or self._next()):
            parts.append(self._block[self._at : self._at + remaining])
            self._at += len(parts[-1])
            remaining -= len(parts[-1])
        return b"".join(parts)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Continue reading at a byte, counted from the start; its whole block is verified."""
        assert whence == io.SEEK_SET
        self._number, self._at, self._block = offset // BLOCK, 0, memoryview(b"")
        try:
            with only_os_errors():
                self._raw.seek(self._number * BLOCK)
        except OSError as error:
            raise unreachable(self._where, error) from error
        self.read(offset % BLOCK)
        return offset

    def _next(self) -> bool:
        start, size = self._number * BLOCK, self._entry.bytes
        want = min(BLOCK, size - start)
        if want <= 0:
            if self._read(size, 1):
                raise damaged(self._where, f"the file is longer than the {size} bytes that were written")
            return False
        data = self._read(start, want)
        if len(data) < want:
            raise damaged(self._where, f"the file has {start + len(data)} of the {size} bytes written")
        if zlib.crc32(data) != self._entry.crc32[self._number]:
            raise damaged(self._where, f"bytes {start} to {start + want - 1} do not match their checksum")
        self._number, self._at, self._block = self._number + 1, 0, memoryview(data)
        return True

    def _read(self, start: int, size: int) -> bytes:
        try:
            return self._disk.read(self._raw, size)
        except OSError as error:
            if error.errno not in _BAD:
                raise unreachable(self._where, error) from error
            raise damaged(self._where, f"bytes {start} to {start + size - 1}: {error}") from error

    def close(self) -> None:
        """Close the file; ignores errors, because all data read has been verified."""
        with suppress(OSError), only_os_errors():
            self._raw.close()
        super().close()


_SNAPSHOT = re.compile(r"(.*)/(?:step|best)-\d{8,}/")


def damaged(where: str, how: str) -> CheckpointError:
    """Return the error that names a damaged file."""
    return CheckpointError(
        f"a file of the checkpoint is damaged: {how}",
        where=where,
        why="the file's content cannot be trusted",
        fix=instead_of(where),
    )


def instead_of(where: str) -> str:
    """Return the advice about a damaged file of a checkpoint: snapshots have older ones to fall back to."""
    if match := _SNAPSHOT.match(where):
        folder = shlex.quote(match[1]) if where.startswith("/") else "with their URL"
        return f"go back to an older snapshot: satrap checkpoint repair {folder}; or restore a backup"
    return "restore a backup of the checkpoint's folder, or train again"


class UnreachableError(CheckpointError):
    """A store does not respond, so the state of its content is unknown."""


def unreachable(where: str, error: OSError) -> UnreachableError:
    """Return the error for a store that cannot be read."""
    return UnreachableError(
        f"the store cannot be read: {error}", where=where, fix="try again when the store is reachable"
    )


class Storage:
    """A folder of files, at a local path or fsspec URL; names are relative, with "/".

    Raises CheckpointError if the URL's protocol is unknown.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        try:
            with only_os_errors():
                fs, self.root = fsspec.core.url_to_fs(url)
        except OSError as error:
            raise CheckpointError(
                f"cannot use {url!r}: {error}", fix="give a path or an fsspec URL"
            ) from error
        self.disk: Disk = LocalDisk() if isinstance(fs, LocalFileSystem) else RemoteDisk(fs)
        self._threads: ThreadPoolExecutor | None = None
        self._under_way: list[Future[None]] = []

    @property
    def absolute(self) -> str:
        """The URL for a process with another working directory."""
        return self.url if "://" in self.url else str(self.root)

    def path(self, name: str) -> str:
        """Return the full path of a file, or of the folder itself for an empty name.

        Raises CheckpointError if the name could lead out of the folder.
        """
        if name and not all(map(is_plain, name.split("/"))):
            raise not_plain(name, self.root)
        return f"{self.root.rstrip('/')}/{name}" if name else self.root

    def exists(self, name: str) -> bool:
        """Return True if the file or folder exists."""
        return self.disk.exists(self.path(name))

    @contextmanager
    def writer(self, name: str) -> Iterator[BlockWriter]:
        """Open a new file for writing; it is durable at the end of this block, or of an outer `together`."""
        raw: Any = self.disk.create(self.path(name))
        try:
            writer = BlockWriter(self.disk, raw)
            yield writer
            writer.finish()
        except BaseException:
            self.disk.abandon(raw)
            raise
        self._make_durable(lambda: self._complete(raw))

    def _complete(self, raw: Any) -> None:
        try:
            self.disk.sync(raw)
            self.disk.close(raw)
        except BaseException:
            self.disk.abandon(raw)
            raise

    @contextmanager
    def together(self) -> Iterator[None]:
        """Make the files and folders of the block durable by its end, several concurrently to save time."""
        if not self.disk.syncs:
            yield
            return
        try:
            with ThreadPoolExecutor(SYNCS, "satrap-sync") as self._threads:
                yield
            for sync in self._under_way:
                sync.result()
        finally:
            self._threads, self._under_way = None, []

    def _make_durable(self, work: Callable[[], None]) -> None:
        if self._threads is None:
            work()
        else:
            self._under_way.append(self._threads.submit(work))

    def make_folder(self, name: str) -> None:
        """Create a folder and its parents, durably."""
        path = self.path(name)
        self.disk.make_folder(path)
        self._make_durable(lambda: self.disk.sync_folder(posixpath.dirname(path) or "."))

    def sync_folder(self, name: str) -> None:
        """Make the current names in a folder durable."""
        self._make_durable(lambda: self.disk.sync_folder(self.path(name)))

    def put(self, name: str, data: bytes, *, new: bool = False) -> None:
        """Write a whole file atomically, see `LocalDisk.put`."""
        self.disk.put(self.path(name), data, new=new)

    def open(self, name: str, entry: FileEntry) -> BlockReader:
        """Open a file for verified reading; raise CheckpointError if it is missing or unreachable."""
        return BlockReader(self.disk, self._open(name), entry, self.path(name))

    def read(self, name: str, entry: FileEntry) -> bytes:
        """Return a whole file, verified; raise CheckpointError if it is missing or damaged."""
        with self.open(name, entry) as file:
            data = file.read()
            file.read(1)
            return data

    def read_start(self, name: str, size: int) -> bytes:
        """Return the first `size` bytes of a file unverified, fewer if it is shorter.

        Raises CheckpointError if it is missing, or not a regular file.
        """
        raw = self._open(name)
        with only_os_errors(), closing(raw):
            return self.disk.read(raw, size)

    def _open(self, name: str) -> IO[bytes]:
        try:
            return self.disk.open(self.path(name), self.root)
        except NotPlainError as error:
            raise damaged(self.path(name), str(error.strerror)) from error
        except FileNotFoundError as error:
            raise CheckpointError(
                "a file of the checkpoint is missing",
                where=self.path(name),
                fix=instead_of(self.path(name)),
            ) from error
        except OSError as error:
            raise unreachable(self.path(name), error) from error

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with its contents."""
        self.disk.remove(self.path(name))

    def names(self, name: str = "") -> Sequence[str]:
        """Return the names directly in a folder, sorted."""
        return self.disk.list(self.path(name))
