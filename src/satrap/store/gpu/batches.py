"""Requests of whole batches: duplicates removed, rows found, created, pooled and stepped on the device.

The host enqueues work and waits for none of it, unless ids need admission, observers follow the rows, or some
of them are in slower memory.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from satrap.errors import StoreError
from satrap.store.admission import AdmissionGate
from satrap.store.arrays import FeatureIds, Ids, Offsets, per_table
from satrap.store.backend import FAST, PartRows, RowBackend
from satrap.store.gpu import layout
from satrap.store.gpu.backend import DeviceRows
from satrap.store.gpu.device import on_its_device
from satrap.store.gpu.directory import LEAST_CAPACITY, on_device
from satrap.store.gpu.order import Distinct, Order
from satrap.store.gpu.returning import ReturningRows
from satrap.store.gpu.slab import DeviceBag, Sources
from satrap.store.tier.tiered import Tiered


class PreparedIds:
    """All ids of a batch in one table group, on the device.

    Attributes:
        distinct: the distinct ids; their memory is used again once this object is gone.
        splits: int64[tables + 1] of the ids, on the host.
        done: the event after which `distinct` is there; None: it is.
    """

    def __init__(self, distinct: Distinct, splits: Offsets, done: Any) -> None:
        self.distinct, self.splits, self.done = distinct, splits, done


class DeviceBatch:
    """The rows of one batch in one table group, from `DeviceBatches.look_up`.

    Attributes:
        distinct: its distinct ids.
        slots: int32[capacity], the slot of each distinct id; -1: no row.
        rows: float32[n, dim], the vectors and rows that the features need, see `gather`.
        splits: int64[tables + 1] of its positions.
        size, features: of the request.
        epoch, lost: of the backend, when the slots were found.
        partial: whether ids may have been left without a row by the lookup.
    """

    def __init__(
        self, rows: DeviceRows, prepared: PreparedIds, size: int, features: Sequence[FeatureIds]
    ) -> None:
        self._backend, self._prepared, self.device = rows, prepared, rows.device
        self.distinct, self.splits = prepared.distinct, prepared.splits
        self.size, self.features = size, features
        self.slots, self.epoch, self.partial = self.distinct.inverse, rows.epoch, False
        self.lost = rows.lost
        self._pooled = [f for f in features if f.mode != "none"]
        self._unpooled = features[len(self._pooled) :]
        self.rows: Tensor = rows.slab.scalars[:0]  # until they are gathered
        self._chosen: Tensor | None = None
        self._counts: Tensor | None = None

    def note_counts(self) -> None:
        """Copy the counts of the last insert to the host, without waiting for it."""
        self._counts, self._asked, self._copied = self._backend.counts, self._backend.room.asked, None
        if self.device.type == "cuda":
            self._counts = torch.empty(layout.WORDS, dtype=torch.int64, pin_memory=True)
            self._counts.copy_(self._backend.counts, non_blocking=True)
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record()

    @property
    def refused(self) -> int:
        """Number of ids that found no place; by the time of the update this does not wait."""
        if self._counts is None:
            return 0
        if self._copied is not None:
            self._copied.synchronize()
        self._backend.room.learn(int(self._counts[layout.USED]), self._asked)
        return int(self._counts[layout.REFUSED])

    def gather(self) -> Tensor:
        """Return `rows`: one vector per sample and pooled feature, sample by sample, then rows.

        The rows are of the positions of the features that are not pooled. An id without a row gets its
        initial weights.
        """
        slab, many = self._backend.slab, len(self._pooled)
        count = self.size * many + sum(f.stop - f.start for f in self._unpooled)
        out = torch.empty(count, slab.kind.dim, device=slab.device)
        block, at = out[: self.size * many].view(self.size, many, slab.kind.dim), self.size * many
        if any(f.mode == "max" for f in self._pooled):
            self._chosen = torch.empty(out.shape, dtype=torch.int32, device=slab.device)
        places = self.distinct, self.slots
        for first, last in self._stretches() if self.size else ():
            f = self._pooled[first]
            if last - first > 1 or _plain(f):
                slab.gather_positions(*places, block[:, first:last], start=f.start, initial=True)
            else:
                chosen = None
                if f.mode == "max" and self._chosen is not None:
                    chosen = self._chosen[: self.size * many].view(block.shape)[:, first]
                slab.pool(*places, self._bag(f), block[:, first], chosen=chosen, initial=True)
        for f in self._unpooled:
            to = out[at : at + f.stop - f.start]
            if len(to):
                slab.gather_positions(*places, to.unsqueeze(1), start=f.start, initial=True)
            at += len(to)
        return out

    def _stretches(self) -> Iterator[tuple[int, int]]:
        """Yield (first, last + 1) of neighbouring features with one id per sample; each other one alone."""
        first = 0
        while first < len(self._pooled):
            last = first + 1
            while (
                last < len(self._pooled)
                and _plain(self._pooled[first])
                and _plain(self._pooled[last])
                and self._pooled[last].start == self._pooled[last - 1].stop
            ):
                last += 1
            yield first, last
            first = last

    def _bag(self, f: FeatureIds) -> DeviceBag:
        device = self._backend.device
        offsets = np.arange(self.size + 1) if f.offsets is None else f.offsets
        weights = None if f.weights is None else on_device(f.weights, device)
        mode = "sum" if _plain(f) else f.mode  # of one row; nothing was chosen
        return DeviceBag(f.start, f.stop, on_device(offsets.astype(np.int32), device), mode, weights)

    def unseen(self) -> Offsets:
        """Return the number of positions without a row, int64[tables]; waits for the device."""
        without = self.slots[self.distinct.inverse[: int(self.splits[-1])].long()] < 0
        sums = np.concatenate([[0], np.cumsum(without.cpu().numpy())])
        return np.diff(sums[self.splits]).astype(np.int64)

    @on_its_device
    def step(self, gradients: Tensor) -> None:
        """Take one optimizer step per distinct id that has a row; `slab.numbers` must be set.

        Args:
            gradients: float32[n, dim], of the result of `rows`.
        """
        many, slab = len(self._pooled), self._backend.slab
        if not len(gradients):
            return
        plain = not self._unpooled and all(map(_plain, self._pooled))
        if plain and list(self._stretches()) == [(0, many)] and self._pooled[0].start == 0:
            slab.step(self.distinct, self.slots, gradients.view(self.size, many, slab.kind.dim))
        else:
            slab.step(self.distinct, self.slots, gradients, self._sources())

    def _sources(self) -> Sources:
        many, device, capacity = len(self._pooled), self._backend.device, self.distinct.capacity
        rows = torch.zeros(capacity, dtype=torch.int32, device=device)
        sources = Sources(rows, torch.ones(capacity, device=device), self._chosen)
        for number, f in enumerate(self._pooled):
            self._backend.slab.trace(self._bag(f), sources, number, many)
        at = self.size * many
        for f in self._unpooled:
            n = f.stop - f.start
            rows[f.start : f.stop] = torch.arange(at, at + n, dtype=torch.int32, device=device)
            at += n
        return sources


class DeviceBatches:
    """Serves requests of whole batches from a `DeviceRows`.

    Args:
        rows: the backend.
        gate: decides which new ids get a row; None: all.
        count: adds int64[tables] to a counter of `TableStatistics`, given its name.
        noise: returns what decides the rounding of the next update.
        frozen: whether rows never change.
        slower: the backend that adds slower memory to `rows`; None: there is none.
    """

    def __init__(
        self,
        rows: DeviceRows,
        gate: AdmissionGate | None,
        count: Callable[[str, Offsets], None],
        noise: Callable[[], np.uint64],
        *,
        frozen: bool,
        slower: Tiered | None = None,
    ) -> None:
        self._whole: RowBackend = slower or rows
        self._slower = None if slower is None else ReturningRows(rows, slower)
        self._gate, self._tell, self._noise, self._frozen = gate, count, noise, frozen
        self._rows, self.device, self._free = rows, rows.device, dict[int, list[Order]]()
        self._lock, self._stream = threading.Lock(), None
        if rows.device.type == "cuda":
            self._stream = torch.cuda.Stream(rows.device)  # type: ignore[no-untyped-call]
        self._numbers = torch.arange(len(rows.kind.tables), dtype=torch.int16, device=rows.device)
        self._counts = torch.zeros(3, len(rows.kind.tables), dtype=torch.int64, device=rows.device)

    @on_its_device
    def prepare(self, ids: Ids, splits: Offsets) -> PreparedIds:
        """Bring ids to the device and find the distinct ones; any thread may call it.

        On a GPU this runs in a stream of its own, while earlier batches are trained.

        Args:
            ids: uint64[n]; they may repeat.
            splits: int64[tables + 1]; `ids[splits[t]:splits[t + 1]]` belong to table t.
        """
        n, device = len(ids), self.device
        grain = max(LEAST_CAPACITY, 1 << max(n.bit_length() - 4, 0))
        capacity = max(1, -(-n // grain)) * grain
        with self._lock:
            free = self._free.setdefault(capacity, [])
            order = free.pop() if free else None
        with self._aside() as done:  # after `pop`: the last use of this memory has been enqueued before
            order = order or Order(self._rows.kind.tables, capacity, device)
            padded = torch.zeros(capacity, dtype=torch.int64, device=device)
            padded[:n].copy_(on_device(ids, device))
            count = torch.full((1,), n, dtype=torch.int32, device=device)
            prepared = PreparedIds(order.distinct(padded, on_device(splits, device), count), splits, done)
        weakref.finalize(prepared, free.append, order)
        return prepared

    @contextmanager
    def _aside(self) -> Iterator[Any]:
        """Enqueue work in the stream for preparations; yields the event of its end, None without streams."""
        if self._stream is None:
            yield None
            return
        self._stream.wait_stream(torch.cuda.current_stream(self.device))  # it may still use this memory
        done: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._stream):
            yield done
            done.record()

    @on_its_device
    def look_up(
        self,
        prepared: PreparedIds,
        size: int,
        features: Sequence[FeatureIds],
        *,
        create: bool,
    ) -> DeviceBatch:
        """Find the rows of a batch.

        Args:
            prepared: all its ids, from `prepare`.
            size: number of samples.
            features: the parts of the ids, the pooled ones first.
            create: whether new ids get a row, and the request counts as a use.
        """
        rows, distinct = self._rows, prepared.distinct
        if prepared.done is not None:
            torch.cuda.current_stream(rows.device).wait_event(prepared.done)
        batch = DeviceBatch(rows, prepared, size, features)
        if create and self._gate is not None:
            self._gate.requests += 1
            batch.partial = True
        if self._slower is not None:
            self._return(self._slower, batch, create=create)
        else:
            slots, missing, misses = rows.search(distinct, use=create)
            if create:
                self._count(distinct, slots)
                if self._gate is not None:
                    missing, misses = self._admitted(self._gate, distinct, missing, misses)
                slots = rows.insert(distinct, missing, misses)
                batch.note_counts()
            batch.slots = slots.clone()  # the index uses this memory again
        batch.rows = batch.gather()
        return batch

    def _return(self, slower: ReturningRows, batch: DeviceBatch, *, create: bool) -> None:
        """Find the rows of a batch, move those in slower memory here, and create new ones.

        Raises:
            StoreError: rows of slower memory have no place among the others; none has changed.
        """
        absent = slower.find(batch.distinct)
        new = absent.nowhere if create else absent.nowhere[:0]
        if create:
            self._count(batch.distinct, absent.slots)
            back = per_table(absent.away.positions, absent.splits)
            self._tell("hits", back)
            self._tell("misses", -back)
            if self._gate is not None:
                admitted = self._gate.admit(absent.ids, absent.splits, new)
                self._tell("unadmitted", per_table(new[~admitted], absent.splits))
                new = new[admitted]
        batch.slots, lost = slower.bring(batch.distinct, absent, new)
        batch.lost, batch.epoch = self._rows.lost, self._rows.epoch
        if lost:
            raise self._no_room(lost)
        if create:
            batch.note_counts()

    def _count(self, distinct: Distinct, slots: Tensor, *, dropped: bool = False) -> None:
        """Count the distinct ids of each table with and without a row."""
        live = torch.arange(len(slots), device=slots.device) < distinct.runs
        tables = distinct.tables if len(self._numbers) > 1 else torch.zeros_like(slots)
        its = (tables.unsqueeze(1) == self._numbers) & live.unsqueeze(1)
        absent = (slots < 0).unsqueeze(1)
        if dropped:
            self._counts[2] += (its & absent).sum(0)
        else:
            self._counts[:2] += torch.stack([(its & ~absent).sum(0), (its & absent).sum(0)])

    def counters(self) -> dict[str, npt.NDArray[np.int64]]:
        """Return int64[tables] each: hits, misses, dropped; see `TableStatistics`."""
        return dict(zip(("hits", "misses", "dropped"), self._counts.cpu().numpy(), strict=True))

    def _admitted(
        self, gate: AdmissionGate, distinct: Distinct, missing: Tensor, misses: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the missing runs that admission lets in; waits for the device."""
        runs = missing[: int(misses)].cpu().numpy()
        ids, order, splits = self._rows.directory.named(distinct, runs)
        new = np.arange(len(ids))
        admitted = gate.admit(ids, splits, new)
        self._tell("unadmitted", per_table(new[~admitted], splits))
        queue = np.sort(runs[order[admitted]])
        chosen = torch.zeros_like(missing)
        chosen[: len(queue)] = on_device(queue, self.device)
        return chosen, torch.full_like(misses, len(queue))

    @on_its_device
    def check(self, batch: DeviceBatch) -> None:
        """Raise the error that `update` would raise, before any group of a step changes rows.

        Rows that other batches have displaced since the lookup return from slower memory.

        Raises:
            StoreError: ids of the lookup found no place.
        """
        if self._frozen:
            return
        if batch.refused:
            raise self._no_room(batch.refused)
        if self._slower is not None and (batch.lost, batch.epoch) != (self._rows.lost, self._rows.epoch):
            self._return(self._slower, batch, create=False)  # others have displaced some of its rows

    def _no_room(self, rows: int) -> StoreError:
        tiered = self._slower is not None
        return StoreError(
            f"no room for {rows} more rows on {self.device}",
            where=f"tables {', '.join(self._rows.kind.tables)}",
            why="the rows of a batch must be on the device together; the step was refused and changed no row"
            if tiered
            else "the memory of the rows is used up; the step was refused and changed no row",
            fix="increase embedding.memory, or reduce data.batch_size"
            if tiered
            else "increase embedding.memory, or evict rows",
        )

    @on_its_device
    def update(self, batch: DeviceBatch, gradients: Tensor, lr_scale: float) -> None:
        """Take one optimizer step per distinct id that has a row; rows of frozen tables stay.

        Args:
            batch: from `look_up`.
            gradients: float32[n, dim], of the result of `rows`.
            lr_scale: factor on the optimizer's lr.

        Raises:
            StoreError: ids of the lookup found no place; nothing has changed.
        """
        rows = self._rows
        if self._frozen:
            return
        self.check(batch)
        if batch.partial or rows.directory.evicts or batch.epoch != rows.epoch:
            # rows may have left their slots since the lookup, and later lookups may have created some
            batch.slots = rows.index.find(batch.distinct, use=False)[0].clone()
            self._count(batch.distinct, batch.slots, dropped=True)
        if self._whole.observers:
            runs = np.arange(int(batch.distinct.runs), dtype=np.int32)
            ids, order, splits = rows.directory.named(batch.distinct, runs)
            slots: Any = batch.slots[: len(runs)].cpu().numpy()[order]
            self._whole.changing(PartRows(FAST, ids, splits, slots))
        rows.slab.numbers.set(lr_scale, self._noise())
        batch.step(gradients)


def _plain(f: FeatureIds) -> bool:
    return f.offsets is None and f.weights is None
