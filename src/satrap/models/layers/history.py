"""Events of a history next to the target they are compared with, and operations on the events of samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from satrap.batch import EmbeddedBatch, JaggedRows
from satrap.errors import ConfigError, did_you_mean
from satrap.models.layers.common import history_of
from satrap.schema import Schema


class TargetedHistory:
    """The features of a history, and the features of the target that they are compared with.

    A feature of the history is compared with the feature outside the sequence that shares its table, the
    first of several in the order of the schema. Features in `context`, and numbers, describe an event only.

    Args:
        schema: features; one sequence, with `max_values`.
        model: name of the model, for errors.
        context: features of the sequence that have no counterpart outside.

    Attributes:
        length: largest number of events.
        width: columns of an event that are compared, and of the target.
        extra: columns of an event's context: rows and numbers.

    Raises:
        ConfigError: not exactly one sequence, no `max_values`, another feature with pooling "none", a feature
            of the sequence without a counterpart, or a name in `context` that is not in the sequence.
    """

    def __init__(self, schema: Schema, model: str, context: Sequence[str] = ()) -> None:
        group, self.length = history_of(schema, model)
        for name in context:
            if name not in group.ids:
                raise ConfigError(
                    f"context names {name!r}, which is not a categorical feature of the sequence",
                    fix=f"{did_you_mean(name, group.ids)}features of the sequence: {', '.join(group.ids)}",
                )
        outside = dict[str, str]()
        for name, feature in schema.categorical.items():
            if feature.sequence is None:
                outside.setdefault(schema.table_of(name), name)
        compared = [name for name in group.ids if name not in context]
        alone = [name for name in compared if schema.table_of(name) not in outside]
        if alone:
            raise ConfigError(
                f"{model} compares events with a target, but {alone[0]!r} has none",
                why="its target is a feature outside the sequence that shares its table, and no feature does",
                fix=f"set table: FEATURE in {alone[0]}, naming the target, such as table: item; or, if it "
                f"has none, set context: [{', '.join(alone)}] in model",
            )
        if not compared:
            raise ConfigError(
                f"{model} compares events with a target, but all features of the sequence are in context",
                fix=f"remove {context[0]} from context",
            )
        self.pairs = {name: outside[schema.table_of(name)] for name in compared}
        self.context, self.numbers = [name for name in group.ids if name in context], group.numbers
        self.width = sum(schema.categorical[name].dim for name in self.pairs)
        self.extra = sum(schema.categorical[name].dim for name in self.context) + len(self.numbers)

    def target(self, batch: EmbeddedBatch) -> Tensor:
        """Return float32[size, width]: the rows that events are compared with."""
        return joined([batch[name] for name in self.pairs.values()])

    def events(self, batch: EmbeddedBatch) -> JaggedRows:
        """Return float32[n, width] of all events."""
        rows: list[Any] = [batch.embeddings[name] for name in self.pairs]
        return JaggedRows(joined([each.values for each in rows]), rows[0].offsets, rows[0].on_host)

    def described(self, batch: EmbeddedBatch) -> list[Tensor]:
        """Return the context of all events, as tensors float32[n, ...] of `extra` columns; possibly none."""
        rows: list[Any] = [batch.embeddings[name] for name in self.context]
        return [each.values for each in [*rows, *(batch.events[name] for name in self.numbers)]]


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Return the columns of one or more tensors float[rows, ...]; a single one is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat([*parts], dim=1)


def segment_sum(values: Tensor, offsets: Tensor) -> Tensor:
    """Return the sums of the events of each sample, one after another in their order.

    Args:
        values: float[n, columns].
        offsets: int64[samples + 1], see `JaggedRows`.

    Returns:
        float[samples, columns]; zeros for samples without events.
    """
    sums: Tensor = _Sum.apply(values, offsets)  # type: ignore[no-untyped-call]
    return sums


def segment_softmax(scores: Tensor, offsets: Tensor) -> Tensor:
    """Return scores float[n, columns] as weights: positive, with sum 1 over the events of each sample."""
    largest = torch.segment_reduce(scores.detach(), "max", offsets=offsets, axis=0, unsafe=True)
    exponents = (scores - spread(largest, offsets, len(scores))).exp()
    return exponents / spread(segment_sum(exponents, offsets), offsets, len(scores))


def spread(values: Tensor, offsets: Tensor, count: int) -> Tensor:
    """Return the value of its sample for each event.

    Args:
        values: float[samples, columns].
        offsets: int64[samples + 1], see `JaggedRows`.
        count: number of events, n.

    Returns:
        float[n, columns].
    """
    spreaded: Tensor = _Spread.apply(values, offsets, count)  # type: ignore[no-untyped-call]
    return spreaded


def last_of(values: Tensor, offsets: Tensor) -> Tensor:
    """Return the last event's values float[samples, columns] of float[n, columns]; without events 0."""
    padded = torch.cat([values, values.new_zeros(1, values.shape[1])])
    return padded.index_select(0, torch.where(offsets.diff() > 0, offsets[1:] - 1, len(values)))


class _Sum(torch.autograd.Function):
    """`embedding_bag` sums in the order of events, also on a GPU, and is faster than `segment_reduce`."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, offsets: Tensor) -> Tensor:
        ctx.save_for_backward(offsets)
        ctx.count = len(values)
        every = torch.arange(len(values), device=values.device)
        return F.embedding_bag(every, values, offsets, mode="sum", include_last_offset=True)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        [offsets] = ctx.saved_tensors
        return spread(gradients[0], offsets, ctx.count), None


class _Spread(torch.autograd.Function):
    """Its gradient is summed in the order of events; `index_select` sums it in no fixed order on a GPU."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, offsets: Tensor, count: int) -> Tensor:
        ctx.save_for_backward(offsets)
        return values.repeat_interleave(offsets.diff(), dim=0, output_size=count)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return segment_sum(gradients[0].contiguous(), *ctx.saved_tensors), None, None
