"""A recipe's model in plain PyTorch: its formula, `embedding_bag`, the optimizers, and an ordinary loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.metrics import roc_auc_score
from tests.models.plain import FORMULAS
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, embedding_bag

import satrap
from satrap.config import Recipe
from satrap.launch.datasets import open_part

Formula = Callable[..., Tensor]

torch.sparse.check_sparse_tensor_invariants.disable()  # else it warns


class Samples:
    """All rows of one part of a recipe: row numbers of each feature's ids, numbers, labels.

    Args:
        recipe, schema: what to read.
        part: "train" or "test".
        known: feature -> ids in ascending order, of the training rows; default: collect them.
    """

    def __init__(
        self, recipe: Recipe, schema: satrap.Schema, part: str, known: Mapping[str, Any] | None = None
    ) -> None:
        dataset = open_part(recipe, schema, part)
        assert dataset is not None
        batches = list(dataset.with_options(shuffle=False).batches())
        self.labels = torch.from_numpy(np.concatenate([batch.labels for batch in batches])).float()[:, 0]
        numbers = [batch.numeric for batch in batches if batch.numeric is not None]
        self.numeric = (
            torch.from_numpy(np.concatenate(numbers)) if numbers else torch.empty(len(self.labels), 0)
        )
        self.known: dict[str, npt.NDArray[np.uint64]] = {}
        self.rows: dict[str, Tensor] = {}
        self.starts: dict[str, Tensor] = {}
        for name in schema.categorical:
            bags = [batch.ids[name] for batch in batches]
            ids = np.concatenate([bag.values for bag in bags])
            lengths = [
                np.ones(len(bag), np.int64) if bag.offsets is None else np.diff(bag.offsets) for bag in bags
            ]
            self.known[name] = np.unique(ids) if known is None else known[name]
            self.rows[name] = torch.from_numpy(_places(self.known[name], ids))
            self.starts[name] = torch.from_numpy(np.append(0, np.cumsum(np.concatenate(lengths))))

    def bags(self, name: str, samples: Tensor) -> tuple[Tensor, Tensor]:
        """Return the row numbers of samples, and the start of each sample's."""
        starts = self.starts[name][samples]
        lengths = self.starts[name][samples + 1] - starts
        ends = lengths.cumsum(0)
        places = torch.arange(int(lengths.sum())) + torch.repeat_interleave(
            starts - (ends - lengths), lengths
        )
        return self.rows[name][places], ends - lengths


def _places(known: npt.NDArray[np.uint64], ids: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Return the row numbers of ids: their places among the known ids, and the last row for all others."""
    places = np.searchsorted(known, ids)
    within = np.minimum(places, len(known) - 1)
    return np.where(known[within] == ids, within, len(known))


def plain_auc(recipe: Recipe, name: str, options: Mapping[str, Any], seed: int) -> float:
    """Train the formula of a model as a recipe asks, with every step in order, and return the test AUC."""
    torch.manual_seed(seed)
    dataset = open_part(recipe, recipe.schema(), "train")
    assert dataset is not None
    schema = satrap.data.measure(recipe.schema(), dataset)
    train = Samples(recipe, schema, "train")
    test = Samples(recipe, schema, "test", train.known)
    model = satrap.models.create(name, schema, **options)
    widths = {k: one.dim for k, one in schema.categorical.items()} | getattr(model, "embedding_dims", {})
    weights = {k: p.detach().clone().requires_grad_() for k, p in model.named_parameters()}
    tables = {
        k: torch.empty(len(train.known[k]) + 1, width).uniform_(-0.01, 0.01) for k, width in widths.items()
    }
    for table in tables.values():
        table[-1] = 0.0  # ids without a row
        table.requires_grad_()
    keys = recipe.sections
    of_rows = keys.embedding.optimizer
    rowwise = torch.optim.Adagrad(
        tables.values(), lr=of_rows.lr, initial_accumulator_value=of_rows.initial_accumulator
    )
    dense = torch.optim.Adam(weights.values(), lr=keys.dense.optimizer.lr)
    score = _scores(FORMULAS[name][0], schema, weights, tables)
    for _ in range(keys.training.epochs):
        for samples in torch.randperm(len(train.labels)).split(keys.batch_size):
            loss = binary_cross_entropy_with_logits(score(train, samples), train.labels[samples])
            rowwise.zero_grad()
            dense.zero_grad()
            loss.backward()
            rowwise.step()
            dense.step()
    with torch.no_grad():
        scores = [score(test, samples) for samples in torch.arange(len(test.labels)).split(8192)]
    return float(roc_auc_score(test.labels, torch.cat(scores)))


def _scores(
    formula: Formula, schema: satrap.Schema, weights: dict[str, Tensor], tables: dict[str, Tensor]
) -> Callable[[Samples, Tensor], Tensor]:
    def score(part: Samples, samples: Tensor) -> Tensor:
        rows = []
        for name, feature in schema.categorical.items():
            ids, starts = part.bags(name, samples)
            mode = feature.pooling if feature.multi else "sum"
            rows.append(embedding_bag(ids, tables[name], starts, mode=mode, sparse=mode != "max"))
        dims = [feature.dim for feature in schema.categorical.values()]
        vectors = [row[:, :dim] for row, dim in zip(rows, dims, strict=True)]
        first = torch.stack([row[:, -1] for row in rows], dim=1)
        return formula(weights, vectors, first, part.numeric[samples])

    return score
