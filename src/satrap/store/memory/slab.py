"""Rows of one kind, contiguous in the memory of this process."""

from __future__ import annotations

import numpy as np

from satrap.store.arrays import Bytes, Floats, Ids, Inverse, Offsets, address
from satrap.store.batch_pooling import strided
from satrap.store.kernels import export, files
from satrap.store.kernels import rows as row_kernels
from satrap.store.kernels.rows import SlabRows
from satrap.store.memory.reserve import Reserved
from satrap.store.memory.thread_pool import ThreadPool
from satrap.store.row_spec import NO_NOISE, RowSpec


class Slab:
    """Memory for at most `count` rows, by slot, and the kernels that copy and change them.

    The memory is only reserved, with large pages (`huge` True) or small ones (False): slots cost nothing
    until they are used. Without `huge` it is ordinary memory, for a few short-lived rows.

    Attributes:
        bytes: the memory of the rows, without the scalars.
        rows: addresses and sizes of the rows, for the kernels.
        scalars: float32[count], the scalar state of each row, stored separately; or empty.
        slots: int32[count], all slots of ordinary memory; empty for reserved memory.

    Raises:
        StoreError: the system does not grant the memory.
    """

    def __init__(self, kind: RowSpec, count: int, workers: ThreadPool, *, huge: bool | None = None) -> None:
        self.kind, self._workers = kind, workers
        self._exact, self._rounding = kind.plan.format(NO_NOISE), kind.plan.format(kind.noise)

        def memory(size: int) -> Bytes:
            if huge is None or not size:
                return np.empty(size, np.uint8)
            return Reserved(size, huge=huge).array(np.uint8)

        stride, scalar = np.uint64(kind.plan.stride), kind.plan.layout.scalar
        self.bytes = memory(count * kind.plan.stride)
        self.scalars = memory(4 * count if scalar else 0).view(np.float32)
        apart = address(self.scalars) if scalar else np.uint64(0)
        self.rows = SlabRows(address(self.bytes), stride, np.uint64(kind.dim), apart)
        self.slots = np.arange(count if huge is None else 0, dtype=np.int32)

    def initialize(self, ids: Ids, splits: Offsets, positions: Offsets, slots: Inverse) -> None:
        """Write the initial rows of the ids at these positions to their slots, int32[n]."""
        row_kernels.initialize(self._exact, self.rows, self.kind.initial, ids, splits, positions, slots)

    def gather(self, slots: Inverse, out: Floats) -> None:
        """Write the weights of slots to float32[n, dim]; rows of slot -1 stay unchanged."""
        start, step = strided(out)

        def work(first: int, end: int) -> None:
            target = start + np.uint64(first) * step
            row_kernels.gather(self.kind.dim)(self._exact, self.rows, slots[first:end], target, step)

        self._workers.run(self._workers.ranges(len(slots)), work)

    def read(self, slots: Inverse) -> tuple[Floats, Floats]:
        """Return (weights float32[n, dim], state float32[n, width]) of slots; undefined for slot -1."""
        plan = self.kind.plan
        weights, state = (np.empty((len(slots), n), np.float32) for n in (self.kind.dim, plan.width))
        (start, step), inner = strided(weights), np.uint64(plan.layout.state)
        width = np.uint64(4 * plan.width)

        def work(first: int, end: int) -> None:
            some, i = slots[first:end], np.uint64(first)
            to, state_to = start + i * step, address(state) + i * width
            export.read_rows(self._exact, self.rows, some, to, inner, state_to, width)

        self._workers.run(self._workers.ranges(len(slots)), work)
        return weights, state

    def write(self, ids: Ids, slots: Inverse, weights: Floats, state: Floats) -> None:
        """Write weights float32[n, dim] and state float32[n, width] of ids to slots, all >= 0."""
        layout = self.kind.plan.layout
        inner = np.ascontiguousarray(state[:, : layout.state])
        to, state_to, width = address(weights), address(inner), np.uint64(layout.state)
        row_kernels.scatter(self._rounding, self.rows, ids, slots, to, state_to, width)
        if layout.scalar:
            self.scalars[slots] = state[:, -1]

    def step(self, ids: Ids, slots: Inverse, gradients: Floats, lr_scale: float, noise: np.uint64) -> None:
        """Take one optimizer step per slot (-1: none); see `Plan.step`."""
        start, step = strided(gradients)

        def work(first: int, end: int) -> None:
            gradient = start + np.uint64(first) * step
            self.kind.plan.step(self.rows, ids[first:end], slots[first:end], gradient, lr_scale, noise)

        self._workers.run(self._workers.ranges(len(ids)), work)

    def records(self, slots: Inverse) -> Bytes:
        """Return the raw rows of slots, uint8[n, row bytes]."""
        records = np.empty((len(slots), self.kind.plan.row_bytes), np.uint8)
        files.take(self.rows, slots, address(records), np.uint64(records.shape[1]))
        return records

    def put(self, slots: Inverse, records: Bytes) -> None:
        """Write the result of `records` to slots."""
        records = np.ascontiguousarray(records)
        files.put(self.rows, slots, address(records), np.uint64(self.kind.plan.row_bytes))
