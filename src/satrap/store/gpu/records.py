"""Rows on a device as records on the host, for slower memory behind it."""

from __future__ import annotations

import numpy as np
import torch

from satrap.store.arrays import Bytes, Inverse
from satrap.store.gpu.device import on_its_device
from satrap.store.gpu.directory import on_device
from satrap.store.gpu.slab import DeviceSlab
from satrap.store.memory.slab import Slab
from satrap.store.memory.thread_pool import ThreadPool


class DeviceRecords:
    """Reads and writes rows as `satrap.store.memory.slab.Slab` does: the same records, weights and state.

    Rows cross the bus as float32, which is exact for all formats. Each call waits for the device.

    Attributes:
        device: of the rows.
    """

    def __init__(self, slab: DeviceSlab) -> None:
        self._slab, self.device, self._workers = slab, slab.device, ThreadPool(1)

    @on_its_device
    def records(self, slots: Inverse) -> Bytes:
        """Return the raw rows of slots, uint8[n, row bytes]."""
        columns = self._slab.read(on_device(slots, self.device))
        loose = Slab(self._slab.kind, len(slots), self._workers)
        weights, state = (column.cpu().numpy() for column in columns)
        loose.write(np.zeros(len(slots), np.uint64), loose.slots, weights, state)
        return loose.records(loose.slots)

    @on_its_device
    def put(self, slots: Inverse, records: Bytes) -> None:
        """Write the result of `records` to slots."""
        loose = Slab(self._slab.kind, len(slots), self._workers)
        loose.put(loose.slots, records)
        ids = torch.zeros(len(slots), dtype=torch.int64, device=self.device)
        columns = (on_device(column, self.device) for column in loose.read(loose.slots))
        self._slab.write(ids, on_device(slots, self.device), *columns)
