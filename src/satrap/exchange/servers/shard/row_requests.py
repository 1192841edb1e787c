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
from satrap.exchange.lookup import LookupRequest
from satrap.exchange.servers.shard.access_counts import AccessCounts
from satrap.exchange.servers.shard.gradient_barrier import (
    GradientBarrier,
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
                for r in requests_of(unpack(parts, most=len(self.store.groups))):
                    self.store.ahead.prefetch(r.group, r.ids, r.splits)

    def lookup(self, session: Session, header: Header, parts: Sequence[Buffer], code: int) -> Work:
        """Check a LOOKUP or PEEK; `code`: number format of its response."""
        create = header.kind == MessageKind.LOOKUP
        requests = self._requests(parts, code, create=create)
        return Work(partial(self._look_up, session, header.step, requests, code, create=create))

    def _look_up(
        self, session: Session, step: int, requests: Sequence[LookupRequest], code: int, *, create: bool
    ) -> list[Buffer]:
        if member_of(session).ordered and create:
            self._board.look(session.rank, step)
        sections, looked_up = [], []
        for r in requests:
            shape = len(r.ids), self.store.groups[r.group].dim
            rows = np.empty(shape, np.float32) if code == CODES["float32"] else self._buffer(*shape)
            if create:
                _, slots = self.store.lookup_slots(r.group, r.ids, r.splits, rows)
                if not self._count_frozen(r):
                    looked_up.append((r, slots))
            else:
                self.store.peek_group(r.group, r.ids, r.splits, rows)
            sections.append(row_section(r.group, rows, code))
        if create and not session.gated:  # the update of several ranks has other ids than its lookups
            self._found.keep(session.client, looked_up)
        return pack(sections)

    def _count_frozen(self, request: LookupRequest) -> bool:
        """Count the uses of frozen rows, which get no update; return whether the rows are frozen."""
        if frozen := self.store.groups[request.group].frozen:
            self.uses.count(request.group, request.ids, request.splits)
        return frozen

    def fetch(self, parts: Sequence[Buffer]) -> Work:
        """Check a FETCH: a LOOKUP of rows with their optimizer state, in float32, to continue elsewhere."""
        return Work(partial(self._fetch, self._requests(parts, CODES["float32"], create=True, state=True)))

    def _fetch(self, requests: Sequence[LookupRequest]) -> list[Buffer]:
        answer = []
        for r in requests:
            rows = np.hstack(self.store.fetch_group(r.group, r.ids, r.splits))
            self._count_frozen(r)
            answer.append(row_section(r.group, rows, CODES["float32"]))
        updates = [self.store.groups[r.group].updates for r in requests]
        return [pack_text({"updates": updates}), *pack(answer)]

    def _requests(
        self, parts: Sequence[Buffer], code: int, *, create: bool, state: bool = False
    ) -> list[LookupRequest]:
        """Return the requests of a lookup; see `read_sections`. `create`: it may create rows."""
        sections = read_sections(parts, self.store.groups, code, self._max_bytes, state=state)
        requests = requests_of(sections)
        if create:
            check_lookups(self.store, ((r.group, r.ids, r.splits) for r in requests))
        return requests

    def update(self, session: Session, header: Header, parts: Sequence[Buffer]) -> Work:
        """Check an UPDATE: it is applied as a whole or not at all."""
        sections = read_sections(parts, self.store.groups, None, self._max_bytes)
        rates = [self.store.groups[s.group].optimizer.lr for s in sections]
        if not abs(header.lr_scale) * max(rates, default=1.0) <= _LARGEST:
            raise StoreError(
                f"lr_scale times the learning rate must be finite, got lr_scale {header.lr_scale}"
            )
        sizes = [s.count * s.dim for s in sections]
        whole = np.empty(sum(sizes), np.float32) if session.gated else self._buffer(sum(sizes), 1)
        pieces = np.split(whole.reshape(-1), np.cumsum(sizes)[:-1]) if sizes else []
        pairs = zip(sections, pieces, strict=True)
        gradients = [from_wire(s, piece.reshape(s.count, s.dim)) for s, piece in pairs]
        share = WorkerGradients(requests_of(sections), gradients, header.lr_scale)
        self._check_gradients(share)
        return Work(partial(self._update, session, header.step, share))

    def _check_gradients(self, share: WorkerGradients) -> None:
        """Reject all groups if one of them cannot be applied."""
        self.store.check_gradients([r.group for r in share.requests], share.gradients)

    def _update(self, session: Session, step: int, share: WorkerGradients) -> None:
        member = member_of(session)
        if not session.gated:
            self._apply(share, self._found.take(session.client, share.requests))
            member.updates, self.updates = member.updates + 1, self.updates + 1
        else:
            shares = self._board.offer(session.rank, step, share)
            member.updates, member.open_step = member.updates + 1, step
            if shares is not None:  # the last rank's gradients complete the step
                self.updates += len(shares)
                merged = merge(shares)
                self._check_gradients(merged)  # finite gradients may have a sum that is not
                self._apply(merged, [None] * len(merged.requests))
        for r in share.requests:
            self.uses.count(r.group, r.ids, r.splits)

    def _apply(self, share: WorkerGradients, found: Sequence[Slots | None]) -> None:
        scale = share.lr_scale
        for r, gradients, slots in zip(share.requests, share.gradients, found, strict=True):
            self.store.update_group(
                r.group, r.ids, r.splits, gradients, lr_scale=scale, slots=slots, checked=True
            )

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

    def _load(self, chunk: RowChunk) -> None:
        self.store.load(chunk.table, chunk)
        hit("shard.load")

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


def requests_of(sections: Sequence[Section]) -> list[LookupRequest]:
    """Return the ids of sections as requests."""
    return [LookupRequest(s.group, s.ids, s.splits) for s in sections if s.ids is not None]
