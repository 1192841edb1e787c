"""The file-system calls of checkpoints, each with a fault point for tests."""

import contextlib
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from typing import IO, Any

from satrap.checkpoint.files.direct_write import PiecewiseFile
from satrap.runtime.fault_points import hit

BESIDE = ".new"
"""Suffix of a file that is renamed once it is complete."""


class NotPlainError(OSError):
    """A path is a link, a pipe, a device or a folder instead of a file."""


class LocalDisk:
    """A local or mounted file system: files by full path, with "/"; fsync makes files and names durable."""

    syncs = True
    """Whether durability needs `sync` and `sync_folder`; then running several at a time is faster."""

    def create(self, path: str) -> PiecewiseFile:
        """Open a new file for writing, or truncate an existing one."""
        hit("disk.create")
        return PiecewiseFile(path)

    def write(self, file: PiecewiseFile, data: memoryview) -> None:
        """Append to an open file; the caller may change the data afterwards."""
        hit("disk.write")
        file.write(data)

    def sync(self, file: PiecewiseFile) -> None:
        """Return when all written data survives a power failure."""
        hit("disk.sync")
        file.sync()

    def sync_folder(self, path: str) -> None:
        """Return when the names in a folder survive a power failure."""
        hit("disk.sync_folder")
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def make_folder(self, path: str) -> None:
        """Create a folder and its parents unless they exist; make the parents durable."""
        if os.path.isdir(path):
            return
        above = os.path.dirname(path) or "."
        if not os.path.isdir(above):
            self.make_folder(above)
            self.sync_folder(os.path.dirname(above) or ".")
        hit("disk.make_folder")
        os.makedirs(path, exist_ok=True)

    def close(self, file: PiecewiseFile) -> None:
        """Close a written file."""
        file.close()

    def abandon(self, file: PiecewiseFile) -> None:
        """Close a file that will not be completed; raises nothing."""
        with contextlib.suppress(OSError):
            file.close(whole=False)

    def put(self, path: str, data: bytes, *, new: bool = False) -> None:
        """Write a whole file atomically and durably: readers see the old or the new content, never a mix.

        With `new`, raises FileExistsError if the file already exists.
        """
        beside = f"{path}.{secrets.token_hex(8)}{BESIDE}"
        file = self.create(beside)
        try:
            self.write(file, memoryview(data))
            self.sync(file)
            self.close(file)
        except BaseException:
            self.abandon(file)
            raise
        if new:
            self._take_free(beside, path)
        else:
            self.replace(beside, path)
        self.sync_folder(os.path.dirname(path))

    def _take_free(self, source: str, target: str) -> None:
        """Rename a file to a new name, atomically if the file system has links.

        If the name is taken, removes the file and raises FileExistsError.
        """
        try:
            self.link(source, target)
        except OSError as error:
            linkless = error.errno in _NO_LINKS
            if linkless and not os.path.exists(target):
                self.replace(source, target)
                return
            if not linkless and not isinstance(error, FileExistsError):
                raise
            self._remove_soon(source)
            raise FileExistsError(errno.EEXIST, "another process has just written it", target) from error
        self._remove_soon(source)

    def _remove_soon(self, path: str) -> None:
        with contextlib.suppress(OSError):  # a leftover file is harmless, and the next save removes it
            self.remove(path)

    def link(self, source: str, target: str) -> None:
        """Give a file a second name, which must not exist."""
        hit("disk.link")
        os.link(source, target)

    def replace(self, source: str, target: str) -> None:
        """Rename a file, replacing any file of that name."""
        hit("disk.replace")
        os.replace(source, target)

    def remove(self, path: str) -> None:
        """Remove a file, or a folder and all in it."""
        hit("disk.remove")
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.remove(path)

    def list(self, path: str) -> list[str]:
        """Return the names in a folder, sorted; none if the folder does not exist."""
        hit("disk.list")
        return sorted(os.listdir(path)) if os.path.isdir(path) else []

    def exists(self, path: str) -> bool:
        """Return whether a file or folder exists."""
        return os.path.exists(path)

    def open(self, path: str, root: str = "") -> IO[bytes]:
        """Open a regular file for reading; below the folder `root` (default: its own), no path may be a link.

        Opens one folder after another, so that none can be replaced by a link in between. Raises
        NotPlainError if the path is not a regular file or contains a link; else FileNotFoundError or another
        OSError.
        """
        hit("disk.read")
        root = root or os.path.dirname(path) or "."
        *folders, name = os.path.relpath(path, root).split(os.sep)
        at = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for folder in folders:
                at, above = _plain(folder, os.O_DIRECTORY, at), at
                os.close(above)
            file = _plain(name, os.O_NONBLOCK, at)  # opening a pipe would wait for a writer
        finally:
            os.close(at)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise NotPlainError(errno.EINVAL, "it is not a regular file")
        return open(file, "rb", buffering=0)

    def read(self, file: IO[bytes], size: int) -> bytes:
        """Return `size` bytes, fewer only at the end."""
        return _read_full(file, size)


def _read_full(file: IO[bytes], size: int) -> bytes:
    """Return `size` bytes, fewer only at the end; a single read of an unbuffered file may return fewer."""
    data = file.read(size)
    while 0 < len(data) < size and (more := file.read(size - len(data))):
        data += more
    return data


def _plain(name: str, flags: int, folder: int) -> int:
    """Open a name in an open folder and return its descriptor; raise on links."""
    try:
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | flags, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise NotPlainError(errno.ENXIO, "it is not a regular file") from error
        if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise NotPlainError(errno.ELOOP, "its path contains a symbolic link") from error
        raise


_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
"""Errors of file systems that do not support links, or have reached their limit."""


@contextlib.contextmanager
def only_os_errors() -> Iterator[None]:
    """Turn any error of a store's client except MemoryError into an OSError."""
    try:
        yield
    except (OSError, MemoryError):
        raise
    except Exception as e:
        raise ConnectionError(f"{type(e).__name__}: {e}") from e


class RemoteDisk:
    """Any fsspec file system, used as a `LocalDisk`: a closed file is durable and appears at once.

    Never uses fsspec's cache of listings, because other processes also write.
    """

    syncs = False

    def __init__(self, fs: Any) -> None:
        self.fs = fs

    def create(self, path: str) -> IO[bytes]:
        """See `LocalDisk.create`."""
        hit("disk.create")
        with only_os_errors():
            file: IO[bytes] = self.fs.open(path, "wb")
        return file

    def write(self, file: IO[bytes], data: memoryview) -> None:
        """See `LocalDisk.write`."""
        hit("disk.write")
        with only_os_errors():
            file.write(data)

    def sync(self, file: IO[bytes]) -> None:
        """Do nothing: closing the file makes it durable."""

    def sync_folder(self, path: str) -> None:
        """Do nothing: names are durable at once."""

    def make_folder(self, path: str) -> None:
        """See `LocalDisk.make_folder`."""
        hit("disk.make_folder")
        with only_os_errors():
            self.fs.makedirs(path, exist_ok=True)

    def close(self, file: IO[bytes]) -> None:
        """See `LocalDisk.close`; completes a multipart upload."""
        with only_os_errors():
            file.close()

    def abandon(self, file: Any) -> None:
        """See `LocalDisk.abandon`: aborts a multipart upload, so that no part remains."""
        # Parts remain if the store is unreachable; stores without `discard` have no parts.
        with contextlib.suppress(OSError), only_os_errors():
            discard = getattr(file, "discard", None)
            if discard is not None:
                discard()
        with contextlib.suppress(AttributeError):
            file.closed = True  # otherwise, the garbage collector would complete the upload

    def put(self, path: str, data: bytes, *, new: bool = False) -> None:
        """See `LocalDisk.put`; if the store does not support conditional puts, looks for the file first."""
        hit("disk.replace")
        with only_os_errors():
            if new and self._put_new(path, data):
                return
            self.fs.pipe_file(path, data)

    def _put_new(self, path: str, data: bytes) -> bool:
        """Put a file, or raise FileExistsError if it exists; return False without conditional puts."""
        try:
            self.fs.pipe_file(path, data, mode="create")
        except (NotImplementedError, TypeError, ValueError) as error:  # fsspec's stores raise any of these
            self.fs.invalidate_cache()
            if self.fs.exists(path):
                raise FileExistsError(errno.EEXIST, "another process has just written it", path) from error
            return False
        return True

    def remove(self, path: str) -> None:
        """See `LocalDisk.remove`."""
        hit("disk.remove")
        with only_os_errors():
            self.fs.invalidate_cache()
            self.fs.rm(path, recursive=True)

    def list(self, path: str) -> list[str]:
        """See `LocalDisk.list`."""
        hit("disk.list")
        with only_os_errors():
            self.fs.invalidate_cache()
            if not self.fs.isdir(path):
                return []
            paths = self.fs.ls(path, detail=False)
        return sorted(item.rstrip("/").rsplit("/", 1)[-1] for item in paths)

    def exists(self, path: str) -> bool:
        """See `LocalDisk.exists`."""
        with only_os_errors():
            self.fs.invalidate_cache()
            return bool(self.fs.exists(path))

    def open(self, path: str, root: str = "") -> IO[bytes]:
        """See `LocalDisk.open`."""
        hit("disk.read")
        with only_os_errors():
            file: IO[bytes] = self.fs.open(path, "rb")
        return file

    def read(self, file: IO[bytes], size: int) -> bytes:
        """See `LocalDisk.read`."""
        with only_os_errors():
            try:
                return _read_full(file, size)
            except FileNotFoundError:
                raise
            except OSError as error:  # the server failed; the bytes may be intact
                raise ConnectionError(f"{type(error).__name__}: {error}") from error


Disk = LocalDisk | RemoteDisk
