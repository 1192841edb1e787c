"""An index on the device and its model, given the same requests and compared after each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from satrap.retention import Eviction
from satrap.store.gpu import layout
from satrap.store.gpu.index import DeviceIndex
from satrap.store.gpu.order import Distinct, Order
from tests.store.gpu.model import Model, unmix

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
Request = Sequence[tuple[int, int]]
"""(table, id) of each position, in any order."""


def random_ids(rng: np.random.Generator, n: int, tables: int = 1, span: int = 2**64) -> list[tuple[int, int]]:
    ids = rng.integers(0, span, n, np.uint64)
    return list(zip(rng.integers(0, tables, n).tolist(), ids.tolist(), strict=True))


def on_device(
    request: Request, tables: int, capacity: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(ids, splits, count) of a request."""
    request = sorted(request, key=lambda pair: pair[0])
    ids = np.zeros(capacity, np.uint64)
    ids[: len(request)] = [i for _, i in request]
    splits = np.searchsorted([t for t, _ in request], np.arange(tables + 1)).astype(np.int64)
    count = torch.tensor([len(request)], dtype=torch.int32, device=DEVICE)
    return torch.from_numpy(ids.view(np.int64)).to(DEVICE), torch.from_numpy(splits).to(DEVICE), count


class Both:
    """Takes the arguments of `DeviceIndex`, and the most positions of a request."""

    def __init__(
        self,
        tables: int,
        rows: int,
        eviction: Eviction | None = None,
        *,
        protected: int = 0,
        capacity: int = 1000,
    ) -> None:
        self.tables = [f"t{t}" for t in range(tables)]
        self.index = DeviceIndex(self.tables, rows, eviction, protected=protected, device=DEVICE)
        self.order = Order(self.tables, capacity, DEVICE)
        self.capacity = capacity
        self.model = Model(
            self.tables,
            rows,
            *self.shape(),
            policy=self.index._policy,
            protected=protected,
            ttl=0 if eviction is None else eviction.ttl or 0,
            free_limit=len(self.index.lists.free),
            ring=len(self.index.lists.log),
        )

    def shape(self) -> tuple[int, int]:
        """Segments of the index, and buckets in each."""
        segments, width = self.index.table.state[[layout.SEGMENTS, layout.WIDTH]].tolist()
        return segments, width

    def hashed(self, h: int, table: int = 0) -> tuple[int, int]:
        """The (table, id) with this hash."""
        return table, unmix(h) ^ self.model.salts[table]

    def sharing(self, bucket: int, n: int, second: int | None = None) -> list[tuple[int, int]]:
        """n ids of table 0 whose first bucket is `bucket`; with `second`, its neighbour of that number in the
        segment is their second bucket."""
        segments, width = self.shape()
        high = -(-(bucket << 32) // (segments * width))
        low = None if second is None else -(-(second << 32) // (width - 1))
        rng = np.random.default_rng(bucket)
        return [
            self.hashed((high + k) << 32 | int(rng.integers(0, 2**32) if low is None else low + k))
            for k in range(n)
        ]

    def distinct(self, request: Request) -> Distinct:
        return self.order.distinct(*on_device(request, len(self.tables), self.capacity))

    def request(self, request: Request, admitted: Request | None = None) -> list[int]:
        """Find, create and compare; `admitted`: the ids that may be created. Return the slots."""
        distinct = self.distinct(request)
        _, missing, misses = self.index.find(distinct, use=True)
        keys = self.model.distinct(list(request))
        allowed = None if admitted is None else set(self.model.distinct(list(admitted)))
        if allowed is not None:
            runs = [r for r in missing[: int(misses)].tolist() if keys[r] in allowed]
            misses = torch.tensor([len(runs)], dtype=torch.int32, device=DEVICE)
            missing[: len(runs)] = torch.tensor(runs, dtype=torch.int32, device=DEVICE)
        slots = self.index.insert(distinct, missing, misses)
        want = self.model.request(keys, allowed)
        assert int(distinct.runs) == len(keys)
        assert slots[: len(keys)].tolist() == want
        assert self.index.refused == self.model.refused
        self.compare()
        return want

    def peek(self, request: Request) -> list[int]:
        """The slots of a request that is not a use."""
        distinct = self.distinct(request)
        slots, missing, misses = self.index.find(distinct, use=False)
        found = slots[: int(distinct.runs)].tolist()
        assert missing[: int(misses)].tolist() == [r for r, slot in enumerate(found) if slot < 0]
        self.compare()
        return found

    def remove(self, request: Request) -> None:
        removed = self.index.remove(self.distinct(request))
        assert removed == self.model.remove(self.model.distinct(list(request)))
        self.compare()

    def grow(self, rows: int) -> None:
        self.index.grow(rows)
        assert self.model.grow(rows, *self.shape()) == 0
        self.compare()

    def clear(self) -> None:
        self.index.clear()
        self.model.clear()
        self.compare()

    def image(self) -> list[Any]:
        """(entry, hash, table, word) of each row on the device."""
        words = self.index.table.words.cpu().numpy()
        flat = words[:, 8:].reshape(-1)
        live = np.flatnonzero(flat)
        hashes = words[:, :8].reshape(-1)[live].view(np.uint64) ^ np.uint64(1 << 63)
        owners = np.zeros_like(live)
        if len(self.tables) > 1:
            owners = self.index.table.owners.cpu().numpy().reshape(-1)[live]
        columns = live, hashes, owners, flat[live].view(np.uint64)
        return list(zip(*(column.tolist() for column in columns), strict=True))

    def compare(self) -> None:
        """The index equals the model bit for bit, and each slot handed out has one row or is free."""
        index, model, image = self.index, self.model, self.image()
        assert image == model.image()
        free = index.lists.free[: int(index.table.state[layout.FREE])].tolist()
        assert free == model.free
        slots = sorted([*((word & 0xFFFFFFFF) - 1 for *_, word in image), *free])
        assert slots == list(range(index.slots)) == list(range(model.used))
        for name, want in model.counters.items():
            np.testing.assert_array_equal(index.counters()[name], want, err_msg=name)
        since = max(0, len(model.log) - model.ring)
        assert index.reassigned == len(model.log)
        taken = index.taken(since)
        log = zip(taken.tables.tolist(), taken.ids.tolist(), taken.slots.tolist(), strict=True)
        assert list(log) == model.log[since:]
