"""A shard's requests about rows: lookups, updates, exports and loads."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from satrap.errors import SatrapError, StoreError
from satrap.exchange.kernels import row_bytes
from satrap.exchange.servers.shard.access_counts import AccessCounts
from satrap.exchange.servers.shard.gradient_barrier import (
    GradientBarrier,
    GroupUpdate,
    WorkerGradients,
    member_of,
    merge,
)
from satrap.exchange.servers.shard.slot_cache import SlotCache
from satrap.exchange.wire.formats import CODES
from satrap.exchange.wire.rows import from_wire, pack_chunk, row_section, unpack_chunk
from satrap.exchange.wire.sections import NO_ROWS, Section, pack, unpack
from satrap.rpc.server.handler import Work
from satrap.rpc.server.session import Session
from satrap.rpc.wire.frames import Buffer, Header, MessageKind
from satrap.rpc.wire.text import pack_text
from satrap.runtime.fault_points import hit
from satrap.store import RowChunk, Shard, Slots
from satrap.store.arrays import check_rows, plain
from satrap.store.group import GroupStore
from satrap.store.shard import check_lookups

Rows = npt.NDArray[np.float32]
EXPORT_ROWS, EXPORT_BYTES = 65536, 32 << 20
"""Most rows per exported chunk, and most bytes, approximately."""
_LARGEST = float(np.finfo(np.float32).max)


class RowRequests:
    """Checks requests against the tables of a store; the returned work executes them there.

    Args:
        store: holds the rows.
        board: collects the gradients of a step in `sync`.
        max_bytes: largest response; a lookup that would need more is rejected before anything is allocated.

    Attributes:
        updates: workers' updates that were applied.
        uses: counts a row once for each step and worker: when its gradient arrives, or for frozen rows, when
            it is looked up. Rows that are only read or prefetched do not count.
    """

    def __init__(self, store: Shard, board: GradientBarrier, max_bytes: int) -> None:
        self.store, self._board, self._max_bytes = store, board, max_bytes
        self.updates, self.uses = 0, AccessCounts([group.tables for group in store.groups])
        self._found = SlotCache()
        self._exports: dict[int, Iterator[RowChunk]] = {}
        self._scratch = np.empty(0, np.float32)

    def expect(self, parts: Sequence[Buffer]) -> None:
        """Prefetch rows from a disk for a lookup that waits or is announced."""
        if self.store.ahead.useful:
            with contextlib.suppress(SatrapError):  # the lookup itself will report the error
                for s in unpack(parts, most=len(self.store.groups)):
                    if s.ids is not None:
                        self.store.ahead.prefetch(s.group, s.ids, s.splits)

    def lookup(self, session: Session, header: Header, parts: Sequence[Buffer], code: int) -> Work:
        """Check a LOOKUP or PEEK; `code`: number format of its response."""
        sections = self._sections(parts, code)
        if header.kind == MessageKind.LOOKUP:
            check_lookups(self.store, ((s.group, s.ids, s.splits) for s in sections if s.ids is not None))
        return Work(partial(self._look_up, session, header, sections, code))

    def _look_up(
        self, session: Session, header: Header, sections: Sequence[Section], code: int
    ) -> list[Buffer]:
        create = header.kind == MessageKind.LOOKUP
        if member_of(session).ordered and create:
            self._board.look(session.rank, header.step)
        sections_out, slots_of_groups = [], []
        for s in sections:
            assert s.ids is not None
            dim = self.store.groups[s.group].dim
            if code == CODES["float32"]:
                rows = np.empty((s.count, dim), np.float32)
            else:
                rows = self._buffer(s.count, dim)
            if create:
                _, slots = self.store.lookup_slots(s.group, s.ids, s.splits, rows)
                if self.store.groups[s.group].frozen:  # frozen rows get no update
                    self.uses.count(s.group, s.ids, s.splits)
                else:
                    slots_of_groups.append((s.ids, s.splits, slots))
            else:
                self.store.peek_group(s.group, s.ids, s.splits, rows)
            sections_out.append(row_section(s.group, rows, code))
        if create and not session.gated:  # the update of several ranks has other ids than its lookups
            self._found.keep(session.client, slots_of_groups)
        return pack(sections_out)

    def fetch(self, parts: Sequence[Buffer]) -> Work:
        """Check a FETCH: a LOOKUP of rows with their optimizer state, in float32, to continue elsewhere."""
        sections = self._sections(parts, CODES["float32"], state=True)
        check_lookups(self.store, ((s.group, s.ids, s.splits) for s in sections if s.ids is not None))
        return Work(partial(self._fetch, sections))

    def _fetch(self, sections: Sequence[Section]) -> list[Buffer]:
        answer = []
        for s in sections:
            assert s.ids is not None
            rows = np.hstack(self.store.fetch_group(s.group, s.ids, s.splits))
            if self.store.groups[s.group].frozen:
                self.uses.count(s.group, s.ids, s.splits)
            answer.append(row_section(s.group, rows, CODES["float32"]))
        updates = [self.store.groups[s.group].updates for s in sections]
        return [pack_text({"updates": updates}), *pack(answer)]

    def update(self, session: Session, header: Header, parts: Sequence[Buffer]) -> Work:
        """Check an UPDATE: it is applied as a whole or not at all."""
        sections = self._sections(parts, None)
        rates = [self.store.groups[s.group].optimizer.lr for s in sections]
        if not abs(header.lr_scale) * max(rates, default=1.0) <= _LARGEST:
            raise StoreError(
                f"lr_scale times the learning rate must be finite, got lr_scale {header.lr_scale}"
            )
        sizes = [s.count * s.dim for s in sections]
        whole = np.empty(sum(sizes), np.float32) if session.gated else self._buffer(sum(sizes), 1)
        pieces = np.split(whole.reshape(-1), np.cumsum(sizes)[:-1]) if sizes else []
        share = WorkerGradients(
            [_gradients(s, p) for s, p in zip(sections, pieces, strict=True)], header.lr_scale
        )
        self._check_gradients(share)
        return Work(partial(self._update, session, header, share))

    def _update(self, session: Session, header: Header, share: WorkerGradients) -> list[Buffer]:
        (self._push if session.gated else self._apply_own)(session, header, share)
        for u in share.updates:
            self.uses.count(u.group, u.ids, u.splits)
        return []

    def _check_gradients(self, share: WorkerGradients) -> None:
        """Reject all groups if one of them cannot be applied."""
        self.store.check_gradients([u.group for u in share.updates], [u.gradients for u in share.updates])

    def _apply_own(self, session: Session, _: Header, share: WorkerGradients) -> None:
        named = [(u.group, u.ids, u.splits) for u in share.updates]
        self._apply(share, self._found.take(session.client, named))
        member_of(session).updates += 1
        self.updates += 1

    def _push(self, session: Session, header: Header, share: WorkerGradients) -> None:
        """Add a rank's gradients to the open step of `sync`; the last rank's complete it."""
        shares = self._board.offer(session.rank, header.step, share)
        member = member_of(session)
        member.updates, member.open_step = member.updates + 1, header.step
        if shares is not None:
            self.updates += len(shares)
            merged = WorkerGradients(merge(shares), shares[0].lr_scale)
            self._check_gradients(merged)  # finite gradients may have a sum that is not
            self._apply(merged, [None] * len(merged.updates))

    def _apply(self, share: WorkerGradients, found: Sequence[Slots | None]) -> None:
        scale = share.lr_scale
        for u, slots in zip(share.updates, found, strict=True):
            self.store.update_group(
                u.group, u.ids, u.splits, u.gradients, lr_scale=scale, slots=slots, checked=True
            )

    def _sections(self, parts: Sequence[Buffer], code: int | None, *, state: bool = False) -> list[Section]:
        """Return the sections of a message; see `read_sections`."""
        return read_sections(parts, self.store.groups, code, self._max_bytes, state=state)

    def _buffer(self, rows: int, dim: int) -> Rows:
        if len(self._scratch) < rows * dim:
            self._scratch = np.empty(rows * dim * 5 // 4, np.float32)
        return self._scratch[: rows * dim].reshape(rows, dim)

    def load(self, parts: Sequence[Buffer]) -> Work:
        """Check a LOAD: rows of the width and type of their table."""
        chunk = unpack_chunk(parts)
        group, rows = self.store.groups[self.store.group_of(chunk.table)[0]], len(chunk.ids)
        check_rows(chunk.weights, rows, group.dim, "weights")
        check_rows(chunk.state, rows, group.plan.width, "state")
        plain(chunk.ids, np.uint64, 1, "ids")
        return Work(partial(self._load, chunk))

    def _load(self, chunk: RowChunk) -> list[Buffer]:
        self.store.load(chunk.table, chunk)
        hit("shard.load")
        return []

    def export(self, client: int, begin: Mapping[str, Any]) -> Work:
        """Check an EXPORT; it responds with the next rows, and after the last ones, with an end.

        Args:
            client: the client.
            begin: the "table" (None: all, one after the other), the "buckets" and the most "rows" of a chunk
                of a new export; empty: continue the client's export.
        """
        if not begin:
            if client not in self._exports:
                raise StoreError(
                    "the export was lost when the shard was restarted", fix="start the export again"
                )
            return Work(partial(self._next_chunk, client))
        if (table := begin["table"]) is not None:
            self.store.group_of(table)
        return Work(partial(self._begin, client, table, begin["buckets"], begin["rows"]))

    def _begin(self, client: int, table: str | None, buckets: Sequence[int], rows: int) -> list[Buffer]:
        groups = self.store.groups if table is None else [self.store.groups[self.store.group_of(table)[0]]]
        fit = EXPORT_BYTES // (16 * max(group.dim for group in groups))
        chunk_rows = max(1, min(rows, EXPORT_ROWS, fit))
        if table is None:
            self._exports[client] = self.store.snapshot(buckets=buckets, chunk_rows=chunk_rows)
        else:
            self._exports[client] = self.store.export(table, buckets=buckets, chunk_rows=chunk_rows)
        return self._next_chunk(client)

    def _next_chunk(self, client: int) -> list[Buffer]:
        hit("shard.export")
        chunk = next(self._exports[client], None)  # a finished export stays: its client requests ahead
        return [pack_text({"end": True})] if chunk is None else pack_chunk(chunk)

    def forget(self, gone: Callable[[int], bool]) -> None:
        """Drop exports and lookups of clients that are gone: an export keeps old versions of rows."""
        self._found.forget(gone)
        for client in filter(gone, list(self._exports)):
            del self._exports[client]


def read_sections(
    parts: Sequence[Buffer],
    groups: Sequence[GroupStore],
    code: int | None,
    most: int,
    *,
    state: bool = False,
) -> list[Section]:
    """Return the sections of a request, at most one per table group.

    Args:
        parts: payload of the request.
        groups: table groups of the store.
        code: number format of the response, None for an update.
        most: largest response in bytes.
        state: the response includes the optimizer state.

    Raises:
        FrameError: the payload is malformed.
        StoreError: sections do not fit the table groups, or the response would be too large.
    """
    size, sections = 0, unpack(parts, most=len(groups))
    for s in sections:
        if s.group >= len(groups) or s.ids is None or s.bags:
            raise StoreError(
                f"there is no group {s.group} with ids and without bags: there are {len(groups)}"
            )
        group = groups[s.group]
        if code is not None:
            size += s.count * row_bytes(code, group.dim + state * group.plan.width)
        if len(s.splits) != len(group.tables) + 1:
            raise StoreError(f"group {s.group} has {len(group.tables)} tables, not {len(s.splits) - 1}")
        if code is None and (s.format == NO_ROWS or s.dim != group.dim):
            raise StoreError(f"group {s.group} needs gradients of width {group.dim}")
    if size > most:
        raise StoreError(
            f"the response would take {size} bytes, but the limit is {most}",
            fix="look up fewer ids at once",
        )
    return sections


def _gradients(s: Section, out: Rows) -> GroupUpdate:
    assert s.ids is not None
    return GroupUpdate(s.group, s.ids, s.splits, from_wire(s, out.reshape(s.count, s.dim)))
