"""Cuts a batch into microbatches, so that only the activations of one are in memory at a time."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from torch import nn

from satrap.batch import Batch
from satrap.data.batch_rows import slice_rows
from satrap.embedding import NO_BATCH, BatchLookup
from satrap.embedding.plan import Span
from satrap.errors import ConfigError


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
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise ConfigError(
                f"microbatches cannot be combined with batch normalization: {name}",
                why="batch normalization would use the statistics of a microbatch, not of the batch",
                fix="use microbatches: 1, or the model without batch_norm",
            )
