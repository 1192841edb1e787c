"""Lookups of forward passes, from the lookup to the update of their rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from satrap.embedding import Embeddings
from satrap.exchange import Exchange, Lookup, LookupRequest
from satrap.store import distinct, segment_sum


class OpenLookup:
    """The lookup of one forward pass. The graph of the pass owns it, so it ends with the graph.

    Args:
        lookup: the issued lookup.
        rows: its rows as leaves of autograd.
        reached: list to which the first backward pass appends it.
    """

    def __init__(self, lookup: Lookup[Any], rows: Sequence[Tensor], reached: list[OpenLookup]) -> None:
        self.lookup, self.rows, self._reached = lookup, rows, reached

    def seen(self) -> list[Tensor]:
        """Return the rows as the network sees them; a backward pass to any of them is noted."""
        return [_Noted.apply(leaf, self) for leaf in self.rows]  # type: ignore[no-untyped-call]

    def note(self) -> None:
        """Note a backward pass."""
        if self not in self._reached:
            self._reached.append(self)

    def forget(self) -> None:
        """Drop the gradients."""
        for leaf in self.rows:
            leaf.grad = None


class _Noted(torch.autograd.Function):
    """The identity; its backward pass is noted in an `OpenLookup`."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor, opened: OpenLookup) -> Tensor:
        ctx.opened = opened
        return leaf.view_as(leaf)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.opened.note()
        return gradient, None


def update(exchange: Exchange, embeddings: Embeddings, opened: Sequence[OpenLookup], lr_scale: float) -> None:
    """Issue one optimizer step for the rows of some lookups, with the sum of the gradients of each row."""
    gradients = [embeddings.gradients(each.rows) for each in opened]
    if len(opened) == 1:
        exchange.apply(opened[0].lookup, gradients[0], lr_scale=lr_scale)
        return
    merged = [
        _merged([each.lookup.requests[number] for each in opened], [arrays[number] for arrays in gradients])
        for number in range(len(opened[0].lookup.requests))
    ]
    # The ids were counted for admission, and got their rows, in their forward passes.
    lookup = exchange.lookup([request for request, _ in merged], create=False)
    lookup.result()  # raises the error of a lookup that failed
    exchange.apply(lookup, [summed for _, summed in merged], lr_scale=lr_scale)


def _merged(requests: Sequence[LookupRequest], gradients: Sequence[Any]) -> tuple[LookupRequest, Any]:
    """Return one request for the ids of several of a table group, and the sums of their gradients."""
    tables = range(len(requests[0].splits) - 1)
    parts = [
        [(number, slice(*request.splits[table : table + 2])) for number, request in enumerate(requests)]
        for table in tables
    ]
    ids = np.concatenate([requests[number].ids[part] for of_table in parts for number, part in of_table])
    rows = np.concatenate([gradients[number][part] for of_table in parts for number, part in of_table])
    splits = np.sum([request.splits for request in requests], axis=0)
    unique_ids, id_splits, inverse = distinct(ids, splits)
    request = LookupRequest(requests[0].group, unique_ids, id_splits)
    return request, segment_sum(rows, inverse, len(unique_ids))
