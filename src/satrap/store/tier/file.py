"""Records of equal size in an unnamed file."""

from __future__ import annotations

import errno
import os
import tempfile
import time

import numpy as np

from satrap.errors import StoreError
from satrap.store.arrays import Bytes, Inverse, address
from satrap.store.kernels import files

SAMPLE = 32
"""Number of records whose read time shows whether the system caches the others in memory."""
SLOW = 10e-6
"""Seconds per record above which records are on disk: memory takes about 1e-6, a disk 2e-5 or more."""
_ADVISED = hasattr(os, "posix_fadvise")
GROWTH = 16 << 20
"""Bytes of disk reserved at a time."""


class RecordFile:
    """At most `slots` slots of `record` bytes in a file that disappears with the process; `path`: its folder.

    Attributes:
        bytes: disk space reserved so far.

    Raises:
        StoreError: the file cannot be created.
    """

    def __init__(self, path: str, record: int, slots: int) -> None:
        self.path, self.record, self.slots = path, record, slots
        self.bytes, self._failed = 0, ""
        try:
            self._file = tempfile.TemporaryFile(dir=path, buffering=0)  # noqa: SIM115
            if _ADVISED:
                os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        except OSError as error:
            raise StoreError(f"the file of the tier cannot be created: {error}", where=path) from error

    def reserve(self, slots: int) -> None:
        """Reserve disk space for the first `slots` slots, so that writes cannot run out of space.

        Raises:
            StoreError: the disk is full; nothing has changed.
        """
        needed = min(slots, self.slots) * self.record
        if needed <= self.bytes:
            return
        more = min(-(-needed // GROWTH) * GROWTH, self.slots * self.record)
        for size in sorted({needed, more}, reverse=True):
            try:
                _allocate(self._file.fileno(), size)
            except OSError as error:
                if size == needed:
                    raise StoreError(
                        f"the tier cannot grow to {needed} bytes: {error.strerror}",
                        where=self.path,
                        why="the request was refused; no row is lost",
                        fix="free disk space, or reduce the size of the tier",
                    ) from error
            else:
                self.bytes = size
                return

    def read(self, slots: Inverse) -> Bytes:
        """Return the records uint8[n, record] of slots int32[n].

        Raises:
            StoreError: the system cannot read the file, or an earlier write failed.
        """
        self._check()
        records = np.empty((len(slots), self.record), np.uint8)
        start = time.perf_counter()
        self._read(slots[:SAMPLE], records[:SAMPLE])
        if time.perf_counter() - start > SLOW * SAMPLE and len(slots) > 2 * SAMPLE:
            self.prefetch(slots[SAMPLE:])  # on disk: let the system read many records concurrently
        self._read(slots[SAMPLE:], records[SAMPLE:])
        return records

    def _read(self, slots: Inverse, records: Bytes) -> None:
        if self._transfer(slots, records, writing=False) < len(slots):
            raise StoreError(
                "the system cannot read the file of the tier", where=self.path, fix="see the system's log"
            )

    def write(self, slots: Inverse, records: Bytes) -> None:
        """Write records uint8[n, record] to slots int32[n].

        Raises:
            StoreError: the write failed; rows have been lost, so all later reads fail as well.
        """
        self._check()
        if self._transfer(slots, records, writing=True) < len(slots):
            self._failed = "the system cannot write the file of the tier"
            self._check()

    def _transfer(self, slots: Inverse, records: Bytes, *, writing: bool) -> int:
        done: int = files.transfer(self._file.fileno(), slots, address(records), self.record, writing)
        return done

    def _check(self) -> None:
        if self._failed:
            raise StoreError(
                self._failed,
                where=self.path,
                why="rows that were evicted from memory are lost",
                fix="see the system's log; resume from a snapshot",
            )

    def prefetch(self, slots: Inverse) -> None:
        """Let the system read the records of slots in the background."""
        if _ADVISED:
            files.advise(self._file.fileno(), slots, self.record, os.POSIX_FADV_WILLNEED)

    def forget_pages(self) -> None:
        """Write all data to disk and drop it from the page cache, so that the next reads use the disk."""
        os.fsync(self._file.fileno())
        if _ADVISED:
            os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def clear(self) -> None:
        """Free the disk space."""
        os.ftruncate(self._file.fileno(), 0)
        self.bytes, self._failed = 0, ""

    def close(self) -> None:
        """Close the file and free its space."""
        self._file.close()


def _allocate(fd: int, size: int) -> None:
    """Set the size of a file in bytes, and reserve the disk space if the system supports it."""
    try:
        os.posix_fallocate(fd, 0, size)
    except (AttributeError, OSError) as error:
        if getattr(error, "errno", errno.EOPNOTSUPP) not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
        os.ftruncate(fd, size)
