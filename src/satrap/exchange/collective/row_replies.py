"""Rows as messages from rank to rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from satrap.exchange import kernels
from satrap.exchange.collective.ranks import Bytes
from satrap.exchange.collective.row_requests import Positions, RowRequest
from satrap.exchange.kernels import row_bytes
from satrap.exchange.lookup import Array, LookupRequest
from satrap.exchange.protocol import TableGroup
from satrap.exchange.servers.wire_format import gather_gradients
from satrap.exchange.traffic import Rounding
from satrap.store.arrays import address

T = TypeVar("T")
Mask = npt.NDArray[np.bool_]
Asks = Sequence[Sequence[RowRequest]]
"""For each request, the part requested from each rank."""


class RowReplies:
    """Packs the rows that each rank has requested from this one, and places received rows.

    Messages hold the rows of one table group after the other, in the order of the request.

    Args:
        groups: the table groups.
        code: number format of rows.
        rounding: measures their rounding.
    """

    def __init__(self, groups: Sequence[TableGroup], code: int, rounding: Rounding) -> None:
        self._groups, self._code, self._rounding = groups, code, rounding

    def pack(self, rows: Array, positions: Positions | None) -> Bytes:
        """Return some of float32[n, dim] rows (None: all), as bytes."""
        raw, _ = gather_gradients(rows, positions, self._code, 1.0)
        self._rounding.note(rows, raw, self._code, positions)
        return raw

    def place(self, given: Sequence[Bytes], requests: Sequence[LookupRequest], asks: Asks) -> list[Array]:
        """Return the rows float32[n, dim] of each request."""
        rows = [np.empty((r.rows, self._groups[r.group].dim), np.float32) for r in requests]
        at = [0] * len(given)
        for i, rank, ask in _in_order(requests, asks):
            count = len(rows[i]) if ask.rows is None else len(ask.rows)
            at[rank] += self._put(given[rank][at[rank] :], count, ask.rows, rows[i])
        return rows

    def place_early(
        self, given: Sequence[Bytes], requests: Sequence[LookupRequest], asks: Asks
    ) -> tuple[list[Array], list[list[Positions]]]:
        """Return the rows of each request, and the positions of the rows that each rank still owes.

        Before the rows of a group, bits mark the rows that are owed, see `owed`.
        """
        rows = [np.empty((r.rows, self._groups[r.group].dim), np.float32) for r in requests]
        missing: list[list[Positions]] = [[] for _ in requests]
        at = [0] * len(given)
        for i, rank, ask in _in_order(requests, asks):
            places = np.arange(len(rows[i]), dtype=np.int32) if ask.rows is None else ask.rows
            bits = given[rank][at[rank] : at[rank] + -(-len(places) // 8)]
            owed = np.unpackbits(bits, count=len(places)).view(np.bool_)
            at[rank] += len(bits)
            here = places[~owed]
            at[rank] += self._put(given[rank][at[rank] :], len(here), here, rows[i])
            missing[i].append(places[owed])
        return rows, missing

    def place_owed(
        self,
        given: Sequence[Bytes],
        requests: Sequence[LookupRequest],
        missing: Sequence[Sequence[Positions]],
        found: Sequence[Array],
    ) -> None:
        """Copy the rows that were owed into the rows of each request."""
        at = [0] * len(given)
        for i, rank, places in _in_order(requests, missing):
            at[rank] += self._put(given[rank][at[rank] :], len(places), places, found[i])

    def _put(self, raw: Bytes, count: int, places: Positions | None, out: Array) -> int:
        """Write `count` rows to their places (None: all in order); return how many bytes they took."""
        dim = out.shape[1]
        size = count * row_bytes(self._code, dim)
        if places is None:
            kernels.widen(self._code, address(raw[:size]), address(out), *map(np.uint64, out.shape))
        else:
            kernels.widen_rows(self._code, address(raw[:size]), np.uint64(dim), places, address(out))
        return size


def owed(later: Mask) -> Bytes:
    """Return bits that mark the rows that are sent later."""
    return np.packbits(later)


def _in_order(
    requests: Sequence[LookupRequest], of_ranks: Sequence[Sequence[T]]
) -> Iterator[tuple[int, int, T]]:
    """Yield (number of a request, rank, the rank's item), in order of table groups."""
    for i in sorted(range(len(requests)), key=lambda i: requests[i].group):
        for rank, item in enumerate(of_ranks[i]):
            yield i, rank, item
