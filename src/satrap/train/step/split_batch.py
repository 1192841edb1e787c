"""Cuts a batch into microbatches, after the lookup of its rows and before they are pooled."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor, nn

from satrap.batch import Batch, EmbeddedBatch
from satrap.data.batch_rows import slice_rows
from satrap.dense.compute.support import check_no_batch_norm
from satrap.embedding import NO_BATCH, BatchLookup
from satrap.embedding.plan import Span


def parts_of(
    ticket: BatchLookup, count: int, weight: Callable[[Batch], float]
) -> list[tuple[BatchLookup, float]]:
    """Return `count` microbatches, each with its share in the batch's mean loss; shares add up to 1.

    Sizes differ by one at most. If a batch has fewer samples than that, some microbatches are `NO_BATCH`, and
    their share is 0.

    Args:
        ticket: a batch with its lookup.
        count: number of microbatches.
        weight: returns the denominator of a batch's mean loss.
    """
    if ticket is NO_BATCH:
        return [(NO_BATCH, 0.0)] * count
    if count == 1:
        return [(ticket, 1.0)]
    size = ticket.batch.size
    bounds = [size * number // count for number in range(count + 1)]
    parts = [_part(ticket, a, b) if a < b else NO_BATCH for a, b in itertools.pairwise(bounds)]
    weights = [0.0 if part is NO_BATCH else weight(part.batch) for part in parts]
    total = sum(weights)
    return [
        (part, part_weight / total if total else 0.0)
        for part, part_weight in zip(parts, weights, strict=True)
    ]


class MicroBatches:
    """The microbatches of a batch for a pipeline, see `parts_of`; each is embedded whenever it is used.

    So pooled features are in memory from the forward pass of a microbatch to its backward pass only. The
    gradients of all microbatches add up in the rows.

    Args:
        ticket: the batch with its lookup.
        rows: the looked-up rows, autograd leaves.
        embed: returns the network's input for a ticket and these rows.
        count: number of microbatches. One beyond the samples repeats the last sample, with share 0.
        weight: returns the denominator of a batch's mean loss; default: all microbatches have the same.

    Attributes:
        size: number of samples of the batch.
        sizes: number of samples of the batch in each microbatch; 0: it has one that does not count.
        shares: share of each in the batch's mean loss.
        rows: the rows.
    """

    def __init__(
        self,
        ticket: BatchLookup,
        rows: Sequence[Tensor],
        embed: Callable[[BatchLookup, Sequence[Tensor]], EmbeddedBatch],
        count: int,
        weight: Callable[[Batch], float] = lambda _: 1.0,
    ) -> None:
        self.size, self.rows, self._embed = ticket.batch.size, rows, embed
        parts = parts_of(ticket, count, weight)
        self.sizes = [0 if part is NO_BATCH else part.batch.size for part, _ in parts]
        self.shares = [share for _, share in parts]
        last = _part(ticket, max(self.size - 1, 0), self.size)
        self._tickets = [last if part is NO_BATCH else part for part, _ in parts]

    def __len__(self) -> int:
        return len(self._tickets)

    def __getitem__(self, number: int) -> EmbeddedBatch:
        return self._embed(self._tickets[number], self.rows)


def _part(ticket: BatchLookup, start: int, stop: int) -> BatchLookup:
    """Return the samples start..stop; their rows keep their positions among the rows of the whole batch."""
    inverses, spans = [], dict[str, Span]()
    for group, inverse in enumerate(ticket.inverses):
        pieces, used = [inverse[:0]], 0
        for name, span in ticket.spans.items():
            if span.group != group:
                continue
            offsets = None if name in ticket.pooled else ticket.batch.ids[name].offsets
            first, last = (start, stop) if offsets is None else (int(offsets[start]), int(offsets[stop]))
            pieces.append(inverse[span.start + first : span.start + last])
            spans[name] = Span(group, used, used := used + last - first)
        inverses.append(np.concatenate(pieces))
    return replace(ticket, batch=slice_rows(ticket.batch, start, stop), inverses=inverses, spans=spans)


def check_parts(model: nn.Module, count: int) -> None:
    """Raise `ConfigError` if microbatches would change the training of a network."""
    if count == 1:
        return
    check_no_batch_norm(
        model,
        "microbatches",
        "batch normalization would use the statistics of a microbatch, not of the batch",
        "use microbatches: 1",
    )
