"""Requests that several shards answer, put together for the caller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from satrap.errors import ExchangeError, SatrapError
from satrap.exchange.protocol import Request, Rows, TableGroup
from satrap.exchange.servers.sections import NO_ROWS, Section, unpack
from satrap.exchange.servers.split import Part
from satrap.exchange.servers.wire import from_wire, place
from satrap.rpc.client.call import Call
from satrap.rpc.wire.frames import Buffer
from satrap.store import floats


class Lookup:
    """Puts the rows of all shards together, straight into one array per request.

    Args:
        call: completed when all shards have answered.
        requests: what was looked up.
        splits: per request, the part of each shard.
        groups: the table groups.
        shards: number of shards.
    """

    def __init__(
        self,
        call: Call[list[Rows]],
        requests: Sequence[Request],
        splits: Sequence[Sequence[Part]],
        groups: Sequence[TableGroup],
        shards: int,
    ) -> None:
        self._call, self._requests, self._splits, self._left = call, requests, splits, shards
        self._rows = [floats(len(r.ids), groups[r.group].dim) for r in requests]

    def answer(self, shard: int, parts: Sequence[Buffer], error: SatrapError | None) -> None:
        """Take the answer of one shard."""
        if error is not None:
            self._call.fail(error)
            return
        sections = unpack(parts, most=len(self._requests))
        if len(sections) != len(self._requests):
            raise ExchangeError(f"shard {shard} answered {len(sections)} of {len(self._requests)} requests")
        for section, split, rows in zip(sections, self._splits, self._rows, strict=True):
            self._put(shard, section, split[shard], rows)
        self._left -= 1
        if self._left == 0:
            self._call.succeed(self._rows)

    def _put(self, shard: int, section: Section, part: Part, rows: Rows) -> None:
        if (section.count, section.dim) != (len(part.ids), rows.shape[1]) or section.format == NO_ROWS:
            raise ExchangeError(f"shard {shard} answered with rows of another shape than asked for")
        if part.positions is None:
            from_wire(section, rows)
        else:
            place(section, part.positions, rows)


def merge_statistics(shards: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the statistics of all shards as those of one store, and each shard's under `shards`."""
    merged = _sum(shards)
    merged["load_factor"] = [float(np.mean(values)) for values in zip(*_lists(shards), strict=True)]
    return {**merged, "shards": list(shards)}


def _lists(shards: Sequence[Mapping[str, Any]]) -> list[list[float]]:
    return [list(s.get("load_factor", [])) for s in shards]


def _sum(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in parts[0].items():
        if isinstance(value, Mapping):
            out[key] = _sum([p[key] for p in parts])
        elif isinstance(value, int | float):
            out[key] = sum(p[key] for p in parts)
    return out
