"""Writes a local file in large pieces, bypassing the page cache if the file system supports it."""

import contextlib
import errno
import fcntl
import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from satrap.store.memory.buffers import floats

PIECE = 1 << 22
"""Bytes of a piece."""
PIECES = 3
"""Most pieces in memory: one is being filled, one is being written, one waits."""
UNWRITTEN = 1 << 25
"""With the page cache: approximate number of bytes that may be waiting for the disk."""
_DIRECT = getattr(os, "O_DIRECT", 0)


class PiecewiseFile:
    """A new or truncated file. Copies the written data; a thread writes it to the disk.

    This keeps the disk busy, takes little CPU time, and does not displace other data from the page cache.
    Disk errors are raised by a later call, at the latest by `sync`.
    """

    def __init__(self, path: str) -> None:
        self._file = open(path, "wb", buffering=0)  # noqa: SIM115 - until `close`
        self._thread: ThreadPoolExecutor | None = None
        self._under_way: deque[Future[None]] = deque()
        self._piece: npt.NDArray[np.uint8] | None = None
        self._filled = 0
        self._direct = False

    def fileno(self) -> int:
        """Return the descriptor of the file."""
        return self._file.fileno()

    def write(self, data: memoryview) -> None:
        """Append bytes; raise OSError if earlier bytes could not be written."""
        remaining = np.frombuffer(data, np.uint8)
        while len(remaining):
            if self._piece is None:
                self._piece = floats(PIECE // 4).view(np.uint8)  # page-aligned, as direct writes require
            part = remaining[: PIECE - self._filled]
            self._piece[self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            remaining = remaining[len(part) :]
            if self._filled == PIECE:
                self._pass_on()

    def _pass_on(self) -> None:
        assert self._piece is not None
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "satrap-disk")
            self._go_direct(True)
        piece, self._piece, self._filled = self._piece, None, 0
        self._under_way.append(self._thread.submit(self._write_piece, piece))
        while len(self._under_way) >= PIECES:
            self._under_way.popleft().result()

    def _write_piece(self, piece: npt.NDArray[np.uint8]) -> None:
        remaining = memoryview(piece)  # type: ignore[arg-type]
        while len(remaining):
            try:
                remaining = remaining[self._file.write(remaining) :]
            except OSError as error:
                if error.errno != errno.EINVAL or not self._direct:
                    raise
                # Direct writes must be whole blocks, and the end of a file rarely is. Some file systems also
                # accept the flag, but then reject writes.
                self._go_direct(False)
        if not self._direct:
            self._write_back(len(piece))

    def _write_back(self, size: int) -> None:
        """Let the system write the last bytes now and drop written bytes from the page cache."""
        if size == PIECE and hasattr(os, "posix_fadvise"):
            end = self._file.tell()
            os.posix_fadvise(self._file.fileno(), end - size, size, os.POSIX_FADV_DONTNEED)
            os.posix_fadvise(self._file.fileno(), 0, max(1, end - UNWRITTEN), os.POSIX_FADV_DONTNEED)

    def _go_direct(self, direct: bool) -> None:
        """Bypass the page cache from now on if the file system supports it, or use the page cache again."""
        flags = fcntl.fcntl(self._file, fcntl.F_GETFL)
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._file, fcntl.F_SETFL, flags | _DIRECT if direct else flags & ~_DIRECT)
            self._direct = direct and bool(_DIRECT)

    def sync(self) -> None:
        """Return when all written data survives a power failure."""
        self._flush()
        os.fsync(self._file.fileno())

    def _flush(self) -> None:
        while self._under_way:
            self._under_way.popleft().result()
        if self._piece is not None:
            self._write_piece(self._piece[: self._filled])
            self._piece, self._filled = None, 0

    def close(self, *, whole: bool = True) -> None:
        """Close the file; unless `whole`, drop data that the thread has not received yet."""
        try:
            if whole and not self._file.closed:
                self._flush()
        finally:
            if self._thread is not None:
                # The thread must end first, or it could write to a later file with the same descriptor.
                self._thread.shutdown()
            self._file.close()
