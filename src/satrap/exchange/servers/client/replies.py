"""Assembles the responses of several shards to one lookup."""

from __future__ import annotations

from collections.abc import Sequence

from satrap.errors import ExchangeError, SatrapError
from satrap.exchange.lookup import Array, Lookup
from satrap.exchange.servers.row_message import NO_ROWS, Section, unpack
from satrap.exchange.servers.wire_format import from_wire, place
from satrap.exchange.split import ShardPart
from satrap.rpc.client.call import Call
from satrap.rpc.wire.frames import Buffer
from satrap.store import floats


class ShardReplies:
    """Assembles the rows of all shards directly in one array per request.

    Args:
        call: completed when all shards have responded.
        lookup: the lookup; its places are the parts of each shard, per request.
        widths: numbers per row, for each request.
        shards: number of shards.
    """

    def __init__(
        self, call: Call[list[Array]], lookup: Lookup[Array], widths: Sequence[int], shards: int
    ) -> None:
        self._call, self._splits, self._left = call, lookup.places, shards
        self._rows = [floats(len(r.ids), w) for r, w in zip(lookup.requests, widths, strict=True)]

    def answer(self, shard: int, parts: Sequence[Buffer], error: SatrapError | None) -> None:
        """Handle the response of one shard."""
        if error is not None:
            self._call.fail(error)
            return
        sections = unpack(parts, most=len(self._rows))
        if len(sections) != len(self._rows):
            raise ExchangeError(f"shard {shard} answered {len(sections)} of {len(self._rows)} requests")
        for section, split, rows in zip(sections, self._splits, self._rows, strict=True):
            self._put(shard, section, split[shard], rows)
        self._left -= 1
        if self._left == 0:
            self._call.succeed(self._rows)

    def _put(self, shard: int, section: Section, part: ShardPart, rows: Array) -> None:
        if (section.count, section.dim) != (len(part.ids), rows.shape[1]) or section.format == NO_ROWS:
            raise ExchangeError(f"shard {shard} answered with rows of a different shape than requested")
        if part.positions is None:
            from_wire(section, rows)
        else:
            place(section, part.positions, rows)
