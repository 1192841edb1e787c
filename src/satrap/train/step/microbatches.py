"""Cuts a batch into microbatches for a pipeline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from itertools import pairwise

import torch
from torch import Tensor

from satrap.batch import Batch, EmbeddedBatch, JaggedRows
from satrap.data.batch_rows import slice_rows
from satrap.embedding.lazy import Block, LazyBlocks, LazyFeatures


class MicroBatches:
    """The microbatches of a batch, of sizes that differ by at most one; unused features are not pooled.

    Features are pooled once for the whole batch. Each microbatch gets a slice with its own gradients, so that
    its backward pass ends there; `backward` then propagates the gradients of all to the rows.

    Args:
        batch: the whole batch.
        count: number of microbatches. A microbatch beyond the samples repeats the last sample: it must not
            count.

    Attributes:
        batches: the microbatches, in order.
        sizes: number of samples of the batch in each; 0: it has one that does not count.
    """

    def __init__(self, batch: EmbeddedBatch, count: int) -> None:
        self._leaves = leaves = _Leaves(batch)
        cuts = [batch.size * number // count for number in range(count + 1)]
        self.sizes = [end - start for start, end in pairwise(cuts)]
        self.batches = [
            _part(batch, leaves, *((start, end) if end > start else (max(batch.size - 1, 0), batch.size)))
            for start, end in pairwise(cuts)
        ]

    def weights(self, weight: Callable[[Batch], float]) -> list[float]:
        """Return each microbatch's weight, by a function of its samples; 0 without samples of its own."""
        sources = [part.source for part in self.batches]
        return [
            weight(s) if size and s is not None else 0.0 for s, size in zip(sources, self.sizes, strict=True)
        ]

    def backward(self) -> bool:
        """Propagate the microbatches' gradients to the rows, after all passes; return if there were any."""
        reached = [(tensor, leaf.grad) for tensor, leaf in self._leaves.cut if leaf.grad is not None]
        if reached:
            torch.autograd.backward([tensor for tensor, _ in reached], [gradient for _, gradient in reached])
        return bool(reached)


def _part(whole: EmbeddedBatch, leaves: _Leaves, start: int, end: int) -> EmbeddedBatch:
    labels, mask, weights, exact = (
        None if column is None else column[start:end]
        for column in (whole.labels, whole.label_mask, whole.weights, whole.exact_labels)
    )
    blocks = LazyBlocks(partial(leaves.blocks_of, start, end))
    return EmbeddedBatch(
        size=end - start,
        embeddings=LazyFeatures(list(whole.embeddings), blocks, partial(leaves.jagged_of, start, end)),
        numeric=whole.numeric[start:end],
        blocks=blocks,
        labels=labels,
        label_mask=mask,
        weights=weights,
        exact_labels=exact,
        source=None if whole.source is None else slice_rows(whole.source, start, end),
        events={name: rows.samples(start, end) for name, rows in whole.events.items()},
    )


class _Leaves:
    """The pooled features of a batch, as autograd leaves of which microbatches get slices.

    Microbatches refer to this object and it does not refer to them: in a reference cycle, batches would stay
    in memory until Python's garbage collector runs.

    Attributes:
        cut: pooled features, and their leaves.
    """

    def __init__(self, batch: EmbeddedBatch) -> None:
        self._batch = batch
        self.cut = list[tuple[Tensor, Tensor]]()

    def _leaf(self, tensor: Tensor) -> Tensor:
        if not tensor.requires_grad:
            return tensor
        leaf = tensor.detach().requires_grad_()
        self.cut.append((tensor, leaf))
        return leaf

    @cached_property
    def _blocks(self) -> list[Block]:
        return [(names, self._leaf(block)) for names, block in self._batch.blocks]

    @cached_property
    def _jagged(self) -> dict[str, JaggedRows]:
        return {
            name: replace(rows, values=self._leaf(rows.values))
            for name, rows in self._batch.embeddings.items()
            if isinstance(rows, JaggedRows)
        }

    def blocks_of(self, start: int, end: int) -> list[Block]:
        """Return the samples start..end of the blocks."""
        return [(names, block[start:end]) for names, block in self._blocks]

    def jagged_of(self, start: int, end: int) -> dict[str, JaggedRows]:
        """Return the samples start..end of features that are not pooled."""
        return {name: rows.samples(start, end) for name, rows in self._jagged.items()}
