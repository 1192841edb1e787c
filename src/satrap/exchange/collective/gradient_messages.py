"""Gradients as messages from rank to rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from satrap.exchange import kernels
from satrap.exchange.collective.ranks import Bytes, joined
from satrap.exchange.collective.row_requests import Positions, RowRequest, by_rank, unpack
from satrap.exchange.lookup import Array, LookupRequest
from satrap.exchange.protocol import TableGroup
from satrap.exchange.servers.wire_format import gather_gradients, scale_of
from satrap.exchange.traffic import Rounding
from satrap.store.arrays import address, check_rows, not_finite

_NOTHING, _WITH_IDS, _REFUSED = -1, -2, -3
"""Special values of the lookup number in an update."""
_NO_BYTES = np.empty(0, np.uint8)


@dataclass(frozen=True, slots=True)
class GradientMessage:
    """One rank's gradients for the rows of this rank.

    Args:
        number: number of the lookup that they are for; None: no kept lookup.
        asks: without a number: the ids of each table group.
        rows: gradients of all groups as bytes: for each group in the order of the ids, then of the bags.
            Gradients of ids are divided by the number of ranks.
        scales: float64 per group: the factor on the gradients.
        code: their number format.
        refused: the rank rejects the update on all ranks.
    """

    number: int | None = None
    asks: Sequence[RowRequest | None] = ()
    rows: Bytes = field(default_factory=lambda: np.empty(0, np.uint8))
    scales: npt.NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    code: int = kernels.FLOAT32
    refused: bool = False

    def take(self, group: int, dim: int, first: int, count: int) -> Array:
        """Return `count` gradients of a group, float32[count, dim], from byte `first` on."""
        raw, out = self.rows[first:], np.empty((count, dim), np.float32)
        kernels.widen(self.code, address(raw), address(out), *map(np.uint64, out.shape))
        if self.scales[group] != 1.0:
            out *= np.float32(1.0 / self.scales[group])
        return out

    def add(self, group: int, first: int, places: Positions, total: Array) -> None:
        """Add the gradients of a group, from byte `first` on, to rows of `total`, float32[n, dim]."""
        scratch, scale = np.empty(total.shape[1], np.float32), np.float32(1.0 / self.scales[group])
        kernels.add_rows(self.code, address(self.rows[first:]), places, total, scratch, scale)


class GradientMessages:
    """Packs and unpacks updates: the number of a lookup, or its ids, then gradients.

    Args:
        groups: the table groups.
        code: number format of gradients.
        ranks: number of ranks.
        rounding: measures the rounding of gradients.
    """

    def __init__(self, groups: Sequence[TableGroup], code: int, ranks: int, rounding: Rounding) -> None:
        self._groups, self._code, self._ranks, self._rounding = groups, code, ranks, rounding

    def pack(
        self,
        number: int | None,
        requests: Sequence[LookupRequest],
        asks: Sequence[Sequence[RowRequest]],
        gradients: Sequence[Array],
    ) -> list[Bytes]:
        """Return the message to each rank.

        Args:
            number: number of the lookup; None: the owners no longer keep it.
            requests: requests of the lookup; if empty, the messages mean that this rank has no gradients.
            asks: by request, the part of each rank.
            gradients: float32[request.rows, dim] per request.

        Raises:
            StoreError: wrong shapes, or a gradient that is not finite in the number format.
        """
        if not requests:
            return self._said(_NOTHING)
        scales = np.ones(len(self._groups))
        rows: list[list[Bytes]] = [[] for _ in range(self._ranks)]
        triples = sorted(zip(requests, asks, gradients, strict=True), key=lambda one: one[0].group)
        for request, of_request, values in triples:
            group = self._groups[request.group]
            if group.frozen:
                continue
            checked = check_rows(values, request.rows, group.dim, "gradients")
            scales[group.index] = scale_of(checked, self._code)
            for message, ask in zip(rows, of_request, strict=True):
                message.append(self._gathered(checked, ask, group, scales[group.index]))
        ids = [_NO_BYTES] * self._ranks
        if number is None:
            number, ids = _WITH_IDS, by_rank(self._groups, self._ranks, requests, asks)
        head = joined([np.array([number], np.int64).view(np.uint8), scales.view(np.uint8)])
        return [joined([head, sent_ids, *parts]) for sent_ids, parts in zip(ids, rows, strict=True)]

    def refusal(self) -> list[Bytes]:
        """Return the messages that reject an update."""
        return self._said(_REFUSED)

    def _said(self, number: int) -> list[Bytes]:
        return [np.array([number], np.int64).view(np.uint8)] * self._ranks

    def _gathered(self, rows: Array, ask: RowRequest, group: TableGroup, scale: float) -> Bytes:
        """Return a rank's gradients times a scale; row gradients are divided by the number of ranks.

        Gradients of vectors are divided by the owner, once it has summed them in this rank's order.
        """
        positions, vectors = ask.gradients, sum(bag.size for bag in ask.bags)
        parts = [(positions, scale / self._ranks)]
        if positions is not None and vectors:
            cut = len(positions) - vectors
            parts = [(positions[:cut], scale / self._ranks), (positions[cut:], scale)]
        gathered = [gather_gradients(rows, places, self._code, factor) for places, factor in parts]
        if not all(finite for _, finite in gathered):
            raise not_finite(f"{len(rows)} rows of {', '.join(group.tables)}")
        for (places, factor), (raw, _) in zip(parts, gathered, strict=True):
            self._rounding.note(rows, raw, self._code, places, factor)
        return joined(raw for raw, _ in gathered)

    def unpack(self, message: Bytes) -> GradientMessage:
        """Return a rank's part of an update."""
        number, rest = int(message[:8].view(np.int64)[0]), message[8:]
        if number in (_NOTHING, _REFUSED):
            return GradientMessage(refused=number == _REFUSED)
        scales, rest = rest[: 8 * len(self._groups)].view(np.float64), rest[8 * len(self._groups) :]
        if number != _WITH_IDS:
            return GradientMessage(number, (), rest, scales, self._code)
        asks, rest = unpack(self._groups, rest)
        return GradientMessage(None, asks, rest, scales, self._code)
