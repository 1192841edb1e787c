"""The part of a lookup that one rank requests from another, and its encoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from satrap.exchange.collective.ranks import Bytes, joined
from satrap.exchange.lookup import Bags, LookupRequest
from satrap.exchange.protocol import TableGroup

Ids = npt.NDArray[np.uint64]
Offsets = npt.NDArray[np.int64]
Positions = npt.NDArray[np.int32]

_MODES = ("sum", "mean", "sqrtn")


@dataclass(frozen=True, slots=True)
class RowRequest:
    """The part of one table group that is requested from one rank.

    Args:
        ids: uint64[n], by table.
        splits: int64[tables + 1].
        bags: multi-valued features of tables that this rank alone holds, which it pools.
        rows: positions of the rank's rows in the response: first the rows of ids, then the pooled vectors;
            None: the rank sends the whole response.
        gradients: the same positions for the gradients that the rank gets.
    """

    ids: Ids
    splits: Offsets
    bags: Sequence[Bags] = ()
    rows: Positions | None = None
    gradients: Positions | None = None

    @property
    def single(self) -> npt.NDArray[np.bool_]:
        """bool[n]: the ids whose rows are not pooled."""
        tables = np.ones(len(self.splits) - 1, np.bool_)
        tables[[bag.table for bag in self.bags]] = False
        return np.repeat(tables, np.diff(self.splits))


def no_ids(group: TableGroup) -> RowRequest:
    """Return an empty request."""
    return RowRequest(np.empty(0, np.uint64), np.zeros(len(group.tables) + 1, np.int64))


def pack(groups: Sequence[TableGroup], asks: Sequence[RowRequest | None]) -> Bytes:
    """Return the message that requests a rank's ids of each group; None: nothing is requested of a group."""
    counts = [
        np.full(len(group.tables), -1) if ask is None else np.diff(ask.splits)
        for group, ask in zip(groups, asks, strict=True)
    ]
    requested = [ask for ask in asks if ask is not None]
    bags = [(group.index, bag) for group, ask in zip(groups, asks, strict=True) if ask for bag in ask.bags]
    heads = [
        [group, b.table, _MODES.index(b.mode), len(b.offsets), len(b.inverse), b.weights is not None]
        for group, b in bags
    ]
    head = np.concatenate([*counts, [len(bags)], *heads]).astype(np.int64)
    weights = [bag.weights for _, bag in bags if bag.weights is not None]
    parts = [head, *(a.ids for a in requested), *(b.offsets for _, b in bags), *(b.inverse for _, b in bags)]
    return joined([np.ascontiguousarray(part).view(np.uint8) for part in (*parts, *weights)])


def by_rank(
    groups: Sequence[TableGroup],
    ranks: int,
    requests: Sequence[LookupRequest],
    asks: Sequence[Sequence[RowRequest]],
) -> list[Bytes]:
    """Return the message that requests from each rank its part of some requests."""
    by_rank_asks: list[list[RowRequest | None]] = [[None] * len(groups) for _ in range(ranks)]
    for request, of_request in zip(requests, asks, strict=True):
        for of_rank, ask in zip(by_rank_asks, of_request, strict=True):
            of_rank[request.group] = ask
    return [pack(groups, of_rank) for of_rank in by_rank_asks]


def unpack(groups: Sequence[TableGroup], message: Bytes) -> tuple[list[RowRequest | None], Bytes]:
    """Return the ids and bags of each group that `pack` packed, and the rest of the message."""
    tables = sum(len(group.tables) for group in groups)
    counts = message[: 8 * tables].view(np.int64)
    [bags] = message[8 * tables : 8 * tables + 8].view(np.int64).tolist()
    end = 8 * tables + 8 + 48 * bags
    heads = message[8 * tables + 8 : end].view(np.int64).reshape(bags, 6).tolist()
    rest = message[end:]
    asks: list[RowRequest | None] = []
    for group in groups:
        table_counts, counts = counts[: len(group.tables)], counts[len(group.tables) :]
        if table_counts[0] < 0:
            asks.append(None)
            continue
        splits = np.concatenate([[0], np.cumsum(table_counts)]).astype(np.int64)
        asks.append(RowRequest(rest[: 8 * splits[-1]].view(np.uint64), splits))
        rest = rest[8 * splits[-1] :]
    return _with_bags(asks, heads, rest) if bags else (asks, rest)


def _with_bags(
    asks: list[RowRequest | None], heads: Sequence[Sequence[int]], rest: Bytes
) -> tuple[list[RowRequest | None], Bytes]:
    """Return the asks with the bags that follow them, and the rest of the message."""

    def take(lengths: Sequence[int], dtype: npt.DTypeLike) -> list[npt.NDArray[np.generic]]:
        nonlocal rest
        taken = []
        for length in lengths:
            size = length * np.dtype(dtype).itemsize
            taken.append(rest[:size].view(dtype))
            rest = rest[size:]
        return taken

    offsets = take([head[3] for head in heads], np.int64)
    inverses = take([head[4] for head in heads], np.int32)
    weights = iter(take([head[4] for head in heads if head[5]], np.float32))
    bags: dict[int, list[Bags]] = {}
    for (group, table, mode, _, _, weighted), bounds, inverse in zip(heads, offsets, inverses, strict=True):
        values = next(weights) if weighted else None
        bags.setdefault(group, []).append(Bags(table, inverse, bounds, values, _MODES[mode]))  # type: ignore[arg-type]
    return [
        ask and RowRequest(ask.ids, ask.splits, bags.get(group, ())) for group, ask in enumerate(asks)
    ], rest
