"""Executes the losses of models that compare vectors, over the items of all workers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from satrap.batch import Batch, EmbeddedBatch, Ids, Jagged
from satrap.data.batch_rows import concat_rows, take_jagged, take_rows
from satrap.data.catalogue import Catalogue, counting, seeded_by
from satrap.data.dataset import Dataset
from satrap.dense import WorkerGroup
from satrap.errors import ConfigError, TrainingError, did_you_mean
from satrap.losses import PairLoss, SampledSoftmax
from satrap.models.retrieval.next_item import NextItem
from satrap.pairs import Pairs, TwoTowers, check_ids_of_items, key_of_items
from satrap.schema import MISSING_ID, Schema
from satrap.train.step.item_rates import Arrays, ItemRates

TINY = float(np.finfo(np.float32).tiny)
SCORES = 1 << 22
"""Most scores in memory at once: negatives are scored in blocks, and again for the gradients."""

Facts = npt.NDArray[np.float64]
"""Of n items, float64[n, 4]: the halves of the id, the share of the item in rows, and in draws."""


class Negatives(NamedTuple):
    """Items that all queries are compared with.

    Attributes:
        vectors: float32[n, width].
        ids: int64[n], the bits of the ids.
        log_counts: float32[n], logarithm of the expected number of times that the item is among them.
    """

    vectors: Tensor
    ids: Tensor
    log_counts: Tensor


class ComparingLoss:
    """A `PairLoss` at work: draws candidates for batches, and returns the mean loss of their pairs.

    With several workers, each compares its queries with the items and candidates of all of them. So the loss
    is a collective: every worker calls it, or `absent`, in each step. Memory does not depend on the number of
    negatives, except for their vectors.

    Args:
        settings: the loss.
        schema: the features.
        item: the features of an item.
        catalogue: the items of the training rows; None if the loss needs none.
        group: the workers that train together.
        seed: of the draws.
        rates: corrects for the frequency of items instead of the catalogue, without drawn items; the items of
            all workers count.
    """

    def __init__(
        self,
        settings: PairLoss,
        schema: Schema,
        item: Sequence[str],
        catalogue: Catalogue | None,
        group: WorkerGroup,
        seed: int,
        rates: ItemRates | None = None,
    ) -> None:
        self._settings, self._schema, self._item = settings, schema, tuple(item)
        self._catalogue, self._group, self._seed, self._rates = catalogue, group, seed, rates
        self._key = key_of_items(schema, item)

    @property
    def collective(self) -> bool:
        """Whether workers without a batch have to take part."""
        return self._group.size > 1

    def with_candidates(self, batch: Batch, epoch: int) -> Batch:
        """Set the items that a batch is compared with, in addition to its own; return the batch."""
        settings, others = self._settings, list[Batch]()
        if settings.negatives:
            assert self._catalogue is not None
            random = seeded_by(batch, self._key, self._seed, epoch)
            others.append(self._catalogue.draw(settings.negatives, settings.power, random))
        if settings.listed is not None:
            others.append(self._listed(batch, settings.listed))
        batch.candidates = concat_rows(others or [_no_items(self._schema, self._item)])
        return batch

    def _listed(self, batch: Batch, feature: str) -> Batch:
        """Return the items that the rows of a batch list."""
        ids = take_jagged(batch.ids[feature], counting(batch, self._key)).values
        ids = ids[ids != MISSING_ID]
        if len(self._item) == 1:
            width = self._schema.numeric_width
            numeric = np.zeros((len(ids), width), np.float32) if width else None
            return Batch(len(ids), {self._key: Jagged(ids)}, numeric)
        assert self._catalogue is not None
        places = self._catalogue.find(ids)
        return take_rows(self._catalogue.items, places[places >= 0])

    def __call__(self, output: object, batch: EmbeddedBatch) -> Tensor:
        """Return the loss over the pairs of a batch, weighted by its labels and weights.

        Its mean over the workers is the mean over all their pairs.

        Args:
            output: `Pairs`, as the model returned them.
            batch: its labels, label_mask and weights.

        Raises:
            TrainingError: the model returned something else.
        """
        pairs, weights = _counting(as_pairs(output), batch)
        of_items, drawn = self._facts(pairs.item_ids), self._facts(pairs.candidate_ids)
        vectors, facts = pairs.candidates, drawn
        if self._settings.in_batch:
            vectors, facts = torch.cat((pairs.items, vectors)), np.concatenate((of_items, drawn))
        sizes = len(of_items) * self._settings.in_batch, float(weights.detach().sum())
        vectors, facts, samples, weight = self._of_all(vectors, facts, sizes)
        self._count(facts)
        place = samples, len(facts) - samples
        negatives = Negatives(vectors, _ids(facts, vectors), self._log_counts(facts, *place, vectors))
        log_counts = self._log_counts(of_items, *place, vectors)
        losses = self._losses(pairs, _ids(of_items, vectors), log_counts, negatives)
        return (losses * weights).sum() * (self._group.size / max(weight, TINY))

    def absent(self, device: torch.device) -> Tensor:
        """Take part in the step of other workers without a batch; return a loss of 0."""
        nothing = torch.zeros(0, 0, device=device, requires_grad=True)
        vectors, facts, _, _ = self._of_all(nothing, np.zeros((0, 4)), (0, 0.0))
        self._count(facts)
        return vectors.sum() * 0

    def _count(self, facts: Facts) -> None:
        """Count the items of a batch of all workers."""
        if self._rates is not None:
            self._rates.count(_bits(facts))

    def _losses(self, pairs: Pairs, ids: Tensor, log_counts: Tensor, negatives: Negatives) -> Tensor:
        """Return the loss of each pair, float32[n]."""
        softmax, hardest = isinstance(self._settings, SampledSoftmax), self._settings.hardest
        scale = 1.0 / self._settings.temperature if isinstance(self._settings, SampledSoftmax) else 1.0
        queries = pairs.queries * scale
        positive = (queries * pairs.items).sum(1) - log_counts

        def scored(queries: Tensor, positive: Tensor, vectors: Tensor, others: Tensor, log: Tensor) -> Tensor:
            scores = (queries @ vectors.T - log).masked_fill(ids.unsqueeze(1) == others, -math.inf)
            if hardest is not None:
                return scores.topk(min(hardest, scores.shape[1]), dim=1).values
            if softmax:
                return scores.logsumexp(1, keepdim=True)
            return F.softplus(scores - positive.unsqueeze(1)).sum(1, keepdim=True)

        size = max(1, SCORES // max(len(queries), 1))
        blocks = [tuple(t[at : at + size] for t in negatives) for at in range(0, len(negatives.ids), size)]
        if len(blocks) == 1:
            scores = scored(queries, positive, *blocks[0])
        else:  # the scores of a block are computed again in the backward pass
            parts = [checkpoint(scored, queries, positive, *block, use_reentrant=False) for block in blocks]
            scores = torch.cat([positive.new_empty(len(positive), 0), *parts], dim=1)
        if hardest is not None:
            scores = scores.topk(min(hardest, scores.shape[1]), dim=1).values
        if softmax:
            return torch.cat((positive.unsqueeze(1), scores), dim=1).logsumexp(1) - positive
        counts = _others(ids, negatives.ids)
        if hardest is not None:
            scores, counts = F.softplus(scores - positive.unsqueeze(1)), counts.clamp(max=hardest)
        return scores.sum(1) / counts.clamp(min=1)

    def _facts(self, ids: Ids) -> Facts:
        """Return the facts of items; shares are 0 if no loss needs them."""
        shares = np.zeros((2, len(ids)))
        if self._corrects and self._rates is None:
            assert self._catalogue is not None
            shares[0] = self._catalogue.shares(ids)
            shares[1] = self._catalogue.shares(ids, self._settings.power)
        return np.stack((ids >> np.uint64(32), ids & np.uint64(0xFFFFFFFF), *shares), axis=1)

    @property
    def _corrects(self) -> bool:
        return isinstance(self._settings, SampledSoftmax) and self._settings.logq

    def _log_counts(self, facts: Facts, samples: int, drawn: int, like: Tensor) -> Tensor:
        """Return the logarithms of the expected counts of items among the negatives; 0 without correction."""
        counts = np.ones(len(facts))
        if self._rates is not None:
            counts = self._rates.expected(_bits(facts))
        elif self._corrects:
            counts = samples * facts[:, 2] + drawn * facts[:, 3]
            counts[counts == 0] = 1.0 / max(samples + drawn, 1)  # not in the training rows, or hardly drawn
        return torch.from_numpy(np.log(counts)).to(like)

    def _of_all(
        self, vectors: Tensor, facts: Facts, sizes: tuple[int, float]
    ) -> tuple[Tensor, Facts, int, float]:
        """Return vectors and facts of all workers, how many are not drawn, and the weight of all pairs.

        `sizes` are the last two of this worker.
        """
        if self._group.size == 1:
            return vectors, facts, *sizes
        with self._group.watched("comparison with the items of all workers"):
            counts = torch.zeros(self._group.size, 4, dtype=torch.float64)
            counts[self._group.rank] = torch.tensor((*vectors.shape, *sizes), dtype=torch.float64)
            self._group.sum(counts)
            width, start = int(counts[:, 1].max()), int(counts[: self._group.rank, 0].sum())
            total, samples, weight = (
                int(counts[:, 0].sum()),
                int(counts[:, 2].sum()),
                float(counts[:, 3].sum()),
            )
            every = torch.zeros(total, 4, dtype=torch.float64)
            every[start : start + len(facts)] = torch.from_numpy(facts)
            self._group.sum(every)
        if not len(vectors):
            vectors = vectors.new_zeros(0, width).requires_grad_()
        joined = cast(Any, _Joined).apply(vectors, self._group, start, total)
        return joined, every.numpy(), samples, weight


class _Joined(torch.autograd.Function):
    """The rows of all workers, in order of rank; its backward pass sums the gradients of all workers."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, group: WorkerGroup, start: int, total: int) -> Tensor:
        ctx.group, ctx.rows = group, slice(start, start + len(rows))
        joined = rows.new_zeros(total, rows.shape[1])
        joined[ctx.rows] = rows
        group.sum(joined)
        return joined

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        summed = gradient.clone()
        ctx.group.sum(summed)
        return summed[ctx.rows], None, None, None


def comparing(
    settings: PairLoss,
    model: nn.Module,
    schema: Schema,
    data: object,
    group: WorkerGroup,
    seed: int,
    arrays: Arrays,
) -> ComparingLoss:
    """Return a loss of pairs at work; count the items of the data if it needs them.

    If the data can be read only once, the frequencies that `logq` needs are estimated in training.

    Args:
        settings: the loss.
        model: a model of vectors.
        schema: the features.
        data: the training rows.
        group, seed: as in `ComparingLoss`.
        arrays: the state of these estimates.

    Raises:
        ConfigError: the model compares no vectors, or the data cannot be read twice.
        DataError: no row has an item.
    """
    item = compared(model, schema, settings)
    catalogue, rates, completed = None, None, settings.listed is not None and len(item) > 1
    if (settings.counts_items or completed) and isinstance(data, Dataset):
        catalogue = Catalogue.of(data, item, getattr(model, "trained_events", None))
    elif settings.negatives or completed:
        drawn = "negatives" if settings.negatives else "listed items of several features"
        others = "set negatives: 0" if settings.negatives else "give items one feature"
        raise ConfigError(
            f"loss {settings.name} with {drawn} needs rows that can be read twice",
            why="the items of the training rows are read before training begins",
            fix=f"read files or tables, or {others}",
        )
    elif settings.counts_items:
        rates = ItemRates(arrays)
    return ComparingLoss(settings, schema, item, catalogue, group, seed, rates)


def compared(model: nn.Module, schema: Schema, settings: PairLoss) -> Sequence[str]:
    """Return the features of the items that a model compares.

    Raises `ConfigError` if it compares no vectors, or if the listed items are not of its items.
    """
    if not isinstance(model, TwoTowers):
        raise ConfigError(
            f"loss {settings.name} needs a model that compares vectors, and {type(model).__name__} has none",
            why="the loss compares the vector of a query with the vectors of other items",
            fix="use two_tower or sasrec, or remove the loss",
        )
    item = model.tower_features["item"]
    if settings.listed is not None:
        _check_listed(settings.listed, model, schema, item)
    return item


def _check_listed(name: str, model: TwoTowers, schema: Schema, item: Sequence[str]) -> None:
    if name not in schema.categorical:
        raise ConfigError(
            f"listed names {name!r}, which is not a categorical feature",
            fix=f"{did_you_mean(name, schema.categorical)}features: {', '.join(schema.categorical)}",
        )
    check_ids_of_items(schema, key_of_items(schema, item), name, "listed")
    if not isinstance(model, NextItem) and name in model.tower_features["user"]:
        raise ConfigError(
            f"listed names {name!r}, which is also a feature of the user",
            why="the network would learn that the right item is none of the listed ones",
            fix=f"give the model the features of the user without {name}: user: [...]",
        )


def as_pairs(output: object) -> Pairs:
    """Return a model's output; `TrainingError` if the model compares no vectors."""
    if not isinstance(output, Pairs):
        raise TrainingError(
            f"the model returned a value of type {type(output).__name__}, not satrap.pairs.Pairs",
            why="the loss compares vectors of queries and items",
            fix="use a model of vectors, such as two_tower, or return Pairs if batch.candidates is given",
        )
    return output


def _bits(facts: Facts) -> Ids:
    halves = facts[:, :2].astype(np.uint64)
    ids: Ids = halves[:, 0] << np.uint64(32) | halves[:, 1]
    return ids


def _ids(facts: Facts, like: Tensor) -> Tensor:
    return torch.from_numpy(_bits(facts).view(np.int64)).to(like.device)


def _others(ids: Tensor, among: Tensor) -> Tensor:
    """Return the number of ids, int64[n], that differ from each id."""
    ordered = among.sort().values
    equal = torch.searchsorted(ordered, ids, right=True) - torch.searchsorted(ordered, ids)
    return len(among) - equal


def _counting(pairs: Pairs, batch: EmbeddedBatch) -> tuple[Pairs, Tensor]:
    """Return the pairs that count, and the weight of each, float32[n]: not with label 0 or a missing item."""
    assert batch.labels is not None
    weights = batch.labels[:, 0] if batch.weights is None else batch.labels[:, 0] * batch.weights
    if batch.label_mask is not None:
        weights = weights * batch.label_mask[:, 0]
    samples = np.arange(len(pairs.item_ids)) if pairs.samples is None else pairs.samples
    weights = weights[torch.from_numpy(samples).to(weights.device)]
    counting = np.flatnonzero((weights > 0).cpu().numpy() & (pairs.item_ids != MISSING_ID))
    if len(counting) == len(samples):
        return pairs, weights
    places, ids = torch.from_numpy(counting).to(weights.device), pairs.item_ids[counting]
    queries, items = pairs.queries[places], pairs.items[places]
    counted = replace(pairs, queries=queries, items=items, item_ids=ids, samples=samples[counting])
    return counted, weights[places]


def _no_items(schema: Schema, item: Sequence[str]) -> Batch:
    """Return a batch of no items."""
    ids = {
        name: Jagged(
            np.zeros(0, np.uint64), np.zeros(1, np.int64) if schema.categorical[name].multi else None
        )
        for name in item
        if name in schema.categorical
    }
    return Batch(0, ids, np.zeros((0, schema.numeric_width), np.float32) if schema.numeric_width else None)
