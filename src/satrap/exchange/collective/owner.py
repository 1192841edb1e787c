"""Serves the rows that a rank owns: the ids of all ranks are one request."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from satrap.exchange.collective.gradient_messages import GradientMessage
from satrap.exchange.collective.placement import Holders
from satrap.exchange.collective.row_requests import Ids, Offsets, Positions, RowRequest, no_ids
from satrap.exchange.kernels import row_bytes
from satrap.exchange.lookup import Array, Bags
from satrap.exchange.protocol import TableGroup
from satrap.store import Shard, Slots, distinct, pool, pool_backward
from satrap.store.memory.buffers import floats
from satrap.store.shard import check_lookups

KEPT = 64
"""Number of lookups whose slots an owner keeps for their updates."""


@dataclass(frozen=True, slots=True)
class Merged:
    """The ids of one table group that all ranks request.

    Args:
        group: index of the table group.
        ids: uint64[u], unique inside each table.
        splits: int64[tables + 1].
        places: for each rank, the position of each of its ids in `ids`.
        bags: for each rank, the features that are pooled for it.
        slots: slots of the rows; None: unknown.
    """

    group: int
    ids: Ids
    splits: Offsets
    places: Sequence[Positions]
    bags: Sequence[Sequence[Bags]]
    slots: Slots | None = None

    def ask(self, rank: int) -> RowRequest:
        """Return the part that a rank has requested."""
        return RowRequest(self.ids[self.places[rank]], self.splits_of(rank), self.bags[rank])

    def splits_of(self, rank: int) -> Offsets:
        """Return int64[tables + 1]: the bounds of the tables in the ids of a rank."""
        return np.searchsorted(self.places[rank], self.splits).astype(np.int64)


class Owner:
    """The rows of this rank.

    The ids that several ranks request together are one request to the store, and their gradients, summed in
    order of rank, are one update: results do not depend on which rank is faster.

    Args:
        shard: holds the rows.
        groups: its table groups.
        holders: placement of rows, which may be replicated on other ranks.

    Attributes:
        most: number of lookups whose slots are kept; the update of an older one finds its rows again.
    """

    def __init__(self, shard: Shard, groups: Sequence[TableGroup], holders: Holders) -> None:
        self.shard, self._groups, self._holders = shard, groups, holders
        self._kept: dict[int, list[Merged]] = {}
        self.most = KEPT

    def look_up(self, number: int, wanted: Sequence[Merged], *, create: bool) -> list[tuple[Merged, Array]]:
        """Return the rows of each group; `number` identifies the lookup.

        Raises:
            StoreError: there is no space for a new row. Then none of the new rows has been created.
        """
        # By number, and before anything can be rejected, so that all ranks keep the same lookups.
        if create:
            self._kept = {n: merged for n, merged in self._kept.items() if n > number - self.most}
        if not create:
            return [(m, self.shard.peek_group(m.group, m.ids, m.splits)[0]) for m in wanted]
        check_lookups(self.shard, ((m.group, m.ids, m.splits) for m in wanted))
        result = []
        for m in wanted:
            rows, slots = self.shard.lookup_slots(m.group, m.ids, m.splits)
            result.append((replace(m, slots=slots), rows))
        self._kept[number] = [m for m, _ in result]
        return result

    def pooled(self, rank: int, m: Merged, rows: Array) -> Array:
        """Return the rows of a rank with bags: rows without a replica there, then pooled vectors."""
        ask, rows_of_rank = m.ask(rank), rows[m.places[rank]]
        copied = self._holders.copied(rank, m.group, ask.splits)
        unpooled = ask.single if copied is None else ask.single & ~copied
        vectors = [
            pool(rows_of_rank, inverse, bag.offsets, mode=bag.mode, weights=bag.weights)[0]
            for bag, inverse in _spread(ask)
        ]
        return np.concatenate([rows_of_rank[unpooled], *vectors])

    def sent(self, rank: int, m: Merged) -> Positions:
        """Return the positions of the rows that are sent to a rank without bags, in the order of its ids."""
        copied = self._holders.copied(rank, m.group, m.splits_of(rank))
        return m.places[rank] if copied is None else m.places[rank][~copied]

    def read(self, m: Merged, at: Positions) -> Array:
        """Return the present values of some rows."""
        assert m.slots is not None
        splits = np.searchsorted(at, m.splits).astype(np.int64)
        slots = replace(m.slots, numbers=m.slots.numbers[at])
        return self.shard.peek_group(m.group, m.ids[at], splits, slots=slots)[0]

    def kept(self, number: int) -> Sequence[Merged]:
        """Return the ids that all ranks requested in a lookup."""
        return self._kept[number]

    def knows(self, number: int) -> bool:
        """Return whether an update may refer to a lookup; the answer is the same on all ranks."""
        return number in self._kept

    def forget(self, number: int) -> None:
        """Drop a lookup and all before it: updates come in their order."""
        self._kept = {n: merged for n, merged in self._kept.items() if n > number}

    def update(
        self,
        pushed: Sequence[GradientMessage],
        lr_scale: float,
        agree: Callable[[Callable[[], None]], object] = lambda check: check(),
    ) -> None:
        """Take one step per row for the gradients of all ranks.

        Args:
            pushed: the push of each rank; all owners get pushes from the same ranks.
            lr_scale: factor on every table's learning rate.
            agree: calls the check of the sums; raises its error on this or another rank.

        Raises:
            StoreError: a sum of gradients is not finite; no row has changed.
        """
        numbers = {push.number for push in pushed if push.number is not None}
        if not numbers and not any(push.asks for push in pushed):
            return
        if len(numbers) == 1 and not any(push.asks for push in pushed):
            merged = self._kept[max(numbers)]
            takes_part = [push.number is not None for push in pushed]
        else:
            asks = [self._asks(rank, push) for rank, push in enumerate(pushed)]
            merged, takes_part = merge(self._groups, asks), [True] * len(pushed)
        at, summed = [0] * len(pushed), []
        for m in (m for m in merged if not self._groups[m.group].frozen):
            total, used = floats(len(m.ids), self._groups[m.group].dim), np.full(len(m.ids), all(takes_part))
            total[:] = 0
            for rank, places in enumerate(m.places):
                if takes_part[rank] and (len(places) or m.bags[rank]):
                    at[rank] = self._add(m, rank, pushed[rank], at[rank], total)
                    used[places] = True
            summed.append((m, total) if used.all() else _only(np.flatnonzero(used), m, total))
        agree(lambda: self.shard.check_gradients([m.group for m, _ in summed], [g for _, g in summed]))
        self.forget(max(numbers, default=0))
        for m, gradients in summed:
            self.shard.update_group(
                m.group, m.ids, m.splits, gradients, lr_scale=lr_scale, slots=m.slots, checked=True
            )

    def _add(self, m: Merged, rank: int, push: GradientMessage, first: int, total: Array) -> int:
        """Add the gradients of a rank to the total; return the offset of the next group.

        Gradients of bags are computed as the rank itself would compute them: summed in the same order, then
        divided.
        """
        dim, places = self._groups[m.group].dim, m.places[rank]
        item = row_bytes(push.code, dim)
        if not m.bags[rank]:
            push.add(m.group, first, places, total)
            return first + item * len(places)
        ask, row_gradients = m.ask(rank), np.zeros((len(places), dim), np.float32)
        single = ask.single
        rest, begin = int(np.count_nonzero(single)), first
        first += item * rest
        for bag, inverse in _spread(ask):
            vectors = push.take(m.group, dim, first, bag.size)
            pool_backward(
                vectors,
                inverse,
                bag.offsets,
                len(places),
                mode=bag.mode,
                weights=bag.weights,
                into=row_gradients,
            )
            first += item * bag.size
        row_gradients *= np.float32(1.0 / self._holders.ranks)
        row_gradients[single] = push.take(m.group, dim, begin, rest)
        total[places] += row_gradients
        return first

    def _asks(self, rank: int, push: GradientMessage) -> Sequence[RowRequest | None]:
        """Return the part of each group that a rank pushes."""
        asks: list[RowRequest | None] = [None] * len(self._groups)
        if push.number is None:
            return push.asks or asks
        for m in self._kept[push.number]:
            asks[m.group] = m.ask(rank)
        return asks


def merge(groups: Sequence[TableGroup], asked: Sequence[Sequence[RowRequest | None]]) -> list[Merged]:
    """Return all ranks' ids: one item per table group that any rank requests, even without ids."""
    result = []
    for group in groups:
        parts = [asks[group.index] for asks in asked]
        if any(part is not None for part in parts):
            result.append(_merge(group.index, [part or no_ids(group) for part in parts]))
    return result


def _merge(group: int, parts: Sequence[RowRequest]) -> Merged:
    """Return the ids of several ranks as one request, table after table, rank after rank."""
    if len(parts) == 1:
        [part] = parts
        every = np.arange(len(part.ids), dtype=np.int32)
        return Merged(group, part.ids, part.splits, [every], [part.bags])
    tables = len(parts[0].splits) - 1
    cuts = [part.ids[part.splits[t] : part.splits[t + 1]] for t in range(tables) for part in parts]
    splits = np.sum([part.splits for part in parts], axis=0).astype(np.int64)
    ids, unique_splits, inverse = distinct(np.concatenate(cuts), splits)
    pieces = np.split(inverse, np.cumsum([len(cut) for cut in cuts])[:-1])
    places = [np.concatenate(pieces[rank :: len(parts)]) for rank in range(len(parts))]
    return Merged(group, ids, unique_splits, places, [part.bags for part in parts])


def _spread(ask: RowRequest) -> Iterator[tuple[Bags, Positions]]:
    """Yield each bag, and for each of its ids the position among all requested ids."""
    for bag in ask.bags:
        yield bag, bag.inverse + np.int32(ask.splits[bag.table])


def _only(kept: npt.NDArray[np.int64], m: Merged, gradients: Array) -> tuple[Merged, Array]:
    """Return some rows, and their gradients."""
    splits = np.searchsorted(kept, m.splits).astype(np.int64)
    return Merged(m.group, m.ids[kept], splits, (), ()), gradients[kept]
