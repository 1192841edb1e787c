"""Serves the rows that a rank owns: the ids of all ranks are one request."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from satrap.exchange import kernels
from satrap.exchange.collective.placement import Holders
from satrap.exchange.lookup import Array, Bags
from satrap.exchange.protocol import TableGroup
from satrap.exchange.split import Positions, union
from satrap.exchange.telemetry import Rounding
from satrap.exchange.wire.rows import from_wire, row_section
from satrap.exchange.wire.sections import Section, pack, unpack
from satrap.rpc.wire.frames import Buffer, as_bytes
from satrap.store import Shard, Slots, pool, pool_backward
from satrap.store.arrays import Bytes, Ids, Offsets, address, on_host
from satrap.store.memory.buffers import floats
from satrap.store.shard import check_lookups

KEPT = 64
"""Number of lookups whose slots an owner keeps for their updates."""
_NO_LOOKUP, _REJECTED = -1, -2
"""Special values of the lookup number in an update."""


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

    def part(self, rank: int) -> Section:
        """Return the part that a rank has requested."""
        ids = self.ids[self.places[rank]]
        return Section(self.group, self.splits_of(rank), ids, bags=self.bags[rank])

    def splits_of(self, rank: int) -> Offsets:
        """Return int64[tables + 1]: the bounds of the tables in the ids of a rank."""
        return np.searchsorted(self.places[rank], self.splits).astype(np.int64)


@dataclass(frozen=True, slots=True)
class RankUpdate:
    """One rank's gradients for the rows of another rank.

    Args:
        number: number of the lookup that they are for; None: no kept lookup, so the sections name the ids.
        sections: table group -> its gradients; gradients of ids are divided by the number of ranks.
        rejected: the rank rejects the update on all ranks.
    """

    number: int | None = None
    sections: Mapping[int, Section] = field(default_factory=dict)
    rejected: bool = False

    def pack(self) -> list[Buffer]:
        """Return the parts of a message, which `unpack` reads."""
        number = _REJECTED if self.rejected else _NO_LOOKUP if self.number is None else self.number
        return [np.array([number], np.int64), *pack(list(self.sections.values()))]

    @classmethod
    def unpack(cls, parts: Sequence[Bytes]) -> RankUpdate:
        """Return the update in a message."""
        number = int(parts[0].view(np.int64)[0])
        sections = {section.group: section for section in unpack(parts[1:])}
        return cls(number if number >= 0 else None, sections, number == _REJECTED)

    @property
    def named(self) -> bool:
        """Whether the sections name ids."""
        return self.number is None and bool(self.sections)


class Owner:
    """The rows of this rank.

    The ids that several ranks request together are one request to the store, and their gradients, summed in
    order of rank, are one update: results do not depend on which rank is faster.

    Args:
        shard: holds the rows.
        groups: its table groups.
        holders: placement of rows, which may be replicated on other ranks.
        code: number format in which rows are sent, default float32.
        rounding: measures their rounding.

    Attributes:
        most: number of lookups whose slots are kept; the update of an older one finds its rows again.
    """

    def __init__(
        self,
        shard: Shard,
        groups: Sequence[TableGroup],
        holders: Holders,
        code: int = kernels.FLOAT32,
        rounding: Rounding | None = None,
    ) -> None:
        self.shard, self._groups, self._holders = shard, groups, holders
        self._code, self._rounding = code, rounding
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
            return [(m, on_host(self.shard.peek_group(m.group, m.ids, m.splits)[0])) for m in wanted]
        check_lookups(self.shard, ((m.group, m.ids, m.splits) for m in wanted))
        result = []
        for m in wanted:
            rows, slots = self.shard.lookup_slots(m.group, m.ids, m.splits)
            result.append((replace(m, slots=slots), on_host(rows)))
        self._kept[number] = [m for m, _ in result]
        return result

    def reply(self, rank: int, m: Merged, rows: Array, positions: Positions | None = None) -> Section:
        """Return the section that a rank gets for a request.

        Args:
            rank: the rank.
            m: the ids of all ranks.
            rows: rows of these ids, or some of them.
            positions: which of `rows` the rank gets; default: see `sent`, or with bags, the rows without a
                replica there, then the pooled vectors.
        """
        if m.bags[rank]:
            rows, positions = self._pooled(rank, m, rows), None
        elif positions is None:
            positions = self.sent(rank, m)
        return row_section(m.group, rows, self._code, positions, self._rounding)

    def _pooled(self, rank: int, m: Merged, rows: Array) -> Array:
        part, rows_of_rank = m.part(rank), rows[m.places[rank]]
        copied = self._holders.copied(rank, m.group, part.splits)
        unpooled = part.single if copied is None else part.single & ~copied
        vectors = [
            pool(rows_of_rank, inverse, bag.offsets, mode=bag.mode, weights=bag.weights)[0]
            for bag, inverse in _spread(part)
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
        return on_host(self.shard.peek_group(m.group, m.ids[at], splits, slots=slots)[0])

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
        updates: Sequence[RankUpdate],
        lr_scale: float,
        agree: Callable[[Callable[[], None]], object] = lambda check: check(),
    ) -> None:
        """Take one step per row for the gradients of all ranks.

        Args:
            updates: the update of each rank; all owners get updates from the same ranks.
            lr_scale: factor on every table's learning rate.
            agree: calls the check of the sums; raises its error on this or another rank.

        Raises:
            StoreError: a sum of gradients is not finite; no row has changed.
        """
        numbers = {update.number for update in updates if update.number is not None}
        named = any(update.named for update in updates)
        if not numbers and not named:
            return
        if len(numbers) == 1 and not named:
            merged = self._kept[max(numbers)]
            takes_part = [update.number is not None for update in updates]
        else:
            parts = [self._requested(rank, update) for rank, update in enumerate(updates)]
            merged, takes_part = merge(self._groups, parts), [True] * len(updates)
        summed = []
        for m in (m for m in merged if not self._groups[m.group].frozen):
            total, used = floats(len(m.ids), self._groups[m.group].dim), np.full(len(m.ids), all(takes_part))
            total[:] = 0
            for rank, places in enumerate(m.places):
                if takes_part[rank] and (len(places) or m.bags[rank]):
                    self._add(m, rank, updates[rank].sections[m.group], total)
                    used[places] = True
            summed.append((m, total) if used.all() else _only(np.flatnonzero(used), m, total))
        agree(lambda: self.shard.check_gradients([m.group for m, _ in summed], [g for _, g in summed]))
        self.forget(max(numbers, default=0))
        for m, gradients in summed:
            self.shard.update_group(
                m.group, m.ids, m.splits, gradients, lr_scale=lr_scale, slots=m.slots, checked=True
            )

    def _add(self, m: Merged, rank: int, section: Section, total: Array) -> None:
        """Add the gradients of a rank to the total.

        Gradients of bags are computed as the rank itself would compute them: summed in the same order, then
        divided.
        """
        places, dim = m.places[rank], total.shape[1]
        if not m.bags[rank]:
            assert (section.row_count, section.dim) == (len(places), dim)
            scratch, scale = np.empty(dim, np.float32), np.float32(1.0 / section.scale)
            rows = address(as_bytes(section.rows))
            kernels.add_rows(section.format, rows, places, total, scratch, scale)
            return
        part = m.part(rank)
        assert (section.row_count, section.dim) == (part.row_count, dim)
        received = from_wire(section, np.empty((section.row_count, dim), np.float32))
        single, row_gradients = part.single, np.zeros((len(places), dim), np.float32)
        first = int(np.count_nonzero(single))
        for bag, inverse in _spread(part):
            pool_backward(
                received[first : first + bag.size],
                inverse,
                bag.offsets,
                len(places),
                mode=bag.mode,
                weights=bag.weights,
                into=row_gradients,
            )
            first += bag.size
        row_gradients *= np.float32(1.0 / self._holders.ranks)
        row_gradients[single] = received[: np.count_nonzero(single)]
        total[places] += row_gradients

    def _requested(self, rank: int, update: RankUpdate) -> Mapping[int, Section]:
        """Return the part of each group for which a rank sends gradients."""
        if update.number is None:
            return update.sections
        return {m.group: m.part(rank) for m in self._kept[update.number]}


def merge(groups: Sequence[TableGroup], requested: Sequence[Mapping[int, Section]]) -> list[Merged]:
    """Return all ranks' ids: one item per table group that any rank requests, even without ids."""
    result = []
    for group in groups:
        of_ranks = [of_rank.get(group.index) for of_rank in requested]
        if any(part is not None for part in of_ranks):
            empty = Section(group.index, np.zeros(len(group.tables) + 1, np.int64), np.empty(0, np.uint64))
            parts = [part or empty for part in of_ranks]
            ids, splits, places = union([(part.ids, part.splits) for part in parts if part.ids is not None])
            result.append(Merged(group.index, ids, splits, places, [part.bags for part in parts]))
    return result


def _spread(part: Section) -> Iterator[tuple[Bags, Positions]]:
    """Yield each bag, and for each of its ids the position among all requested ids."""
    for bag in part.bags:
        yield bag, bag.inverse + np.int32(part.splits[bag.table])


def _only(kept: npt.NDArray[np.int64], m: Merged, gradients: Array) -> tuple[Merged, Array]:
    """Return some rows, and their gradients."""
    splits = np.searchsorted(kept, m.splits).astype(np.int64)
    return Merged(m.group, m.ids[kept], splits, (), ()), gradients[kept]
