"""Records of equal size in host memory, behind a GPU."""

from __future__ import annotations

from satrap.store.arrays import Bytes, Inverse
from satrap.store.memory.slab import Slab
from satrap.store.memory.thread_pool import ThreadPool
from satrap.store.row_spec import RowSpec


class RecordMemory:
    """At most `slots` slots for records of rows in the memory of this process, used like a `RecordFile`.

    Attributes:
        path: None, instead of a folder.
        bytes: memory reserved so far, in the sense of `RecordFile.bytes`.

    Raises:
        StoreError: the system does not grant the address space.
    """

    path = None

    def __init__(self, kind: RowSpec, slots: int, workers: ThreadPool) -> None:
        self._kind, self._slots, self._workers, self.bytes = kind, slots, workers, 0
        self._slab = Slab(kind, slots, workers, huge=True)

    def reserve(self, slots: int) -> None:
        """Note that the first `slots` slots may be used."""
        self.bytes = max(self.bytes, min(slots, self._slots) * self._kind.plan.row_bytes)

    def read(self, slots: Inverse) -> Bytes:
        """Return the records uint8[n, record] of slots int32[n]."""
        return self._slab.records(slots)

    def write(self, slots: Inverse, records: Bytes) -> None:
        """Write records uint8[n, record] to slots int32[n]."""
        self._slab.put(slots, records)

    def prefetch(self, slots: Inverse) -> None:
        """Nothing: memory needs no notice."""

    def clear(self) -> None:
        """Free the memory."""
        self._slab, self.bytes = Slab(self._kind, self._slots, self._workers, huge=True), 0

    def close(self) -> None:
        """Free the memory."""
        self._slab = Slab(self._kind, 1, self._workers)
