"""Two towers: a vector of the user, a vector of the item, and their dot product."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from satrap.batch import EmbeddedBatch
from satrap.errors import ConfigError, did_you_mean
from satrap.models.layers.common import Ranker, check_pooled, check_whole, mlp, one_output, set_first
from satrap.models.layers.linear import XavierLinear
from satrap.pairs import Pairs, key_of_items, pairs_of
from satrap.runtime.arguments import checked
from satrap.schema import Schema


class TwoTower(Ranker):
    """An MLP of the user's features, an MLP of the item's features, and the dot product of their outputs.

    The score depends only on the dot product, so an index of item vectors, as `satrap export items` writes,
    finds the best of millions of items for a user's vector.

    Reference: Covington et al., "Deep Neural Networks for YouTube Recommendations", RecSys 2016; Yi et al.,
    "Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations", RecSys 2019.

    Args:
        schema: one label with one output, and features; dims may differ.
        item: the features of the item, at least one and not all.
        user: the features of the user, default all others. The network does not use features of neither, such
            as the items that `satrap.settings.Ranking` excludes.
        hidden: widths of the hidden layers of each tower, default 128.
        width: width of the vectors, default 32.
        normalize: divide vectors by their lengths, so that scores are cosines; for a loss with a
            temperature, such as `satrap.losses.SampledSoftmax`. Default off.
        dropout: probability of zeroing a hidden activation in training, default 0.
        batch_norm: normalise before each ReLU, default off.

    Attributes:
        tower_features: the features that each tower reads, in the schema's order: "user" and "item".

    Raises:
        ConfigError: no label or several outputs, a feature with pooling "none", an item or user without
            features, or an invalid argument.
    """

    needs = ("item", "one label")

    @checked()
    def __init__(
        self,
        schema: Schema,
        *,
        item: Sequence[str] = (),
        user: Sequence[str] | None = None,
        hidden: Sequence[int] = (128,),
        width: int = 32,
        normalize: bool = False,
        dropout: float = 0.0,
        batch_norm: bool = False,
    ) -> None:
        super().__init__()
        check_pooled(schema, "TwoTower")
        check_whole("width", width)
        self.tower_features, self.normalize = _divided(schema, item, user), normalize
        self.first = one_output(schema, "TwoTower")
        self.numbers = {
            tower: [schema.numeric_columns[name] for name in names if name in schema.numeric_columns]
            for tower, names in self.tower_features.items()
        }
        self.towers = nn.ModuleDict()
        for tower, names in self.tower_features.items():
            columns = sum(schema.categorical[name].dim for name in names if name in schema.categorical)
            columns += sum(part.stop - part.start for part in self.numbers[tower])
            deep, last = mlp(columns, hidden, dropout=dropout, batch_norm=batch_norm)
            self.towers[tower] = nn.Sequential(*deep, XavierLinear(last, width))
        self.bias = nn.Parameter(torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the initial bias; the towers set their own weights."""
        set_first(self.bias, self.first)

    def forward(self, batch: EmbeddedBatch) -> Tensor | Pairs:
        """Return logits float32[size, 1]; the vectors, if the batch has candidates."""
        user, item = (self.tower_vectors(tower, self._part(tower, batch)) for tower in self.towers)
        if batch.candidates is None:
            return (user * item).sum(1, keepdim=True) + self.bias
        candidates = self.tower_vectors("item", self._part("item", batch.candidates))
        return pairs_of(batch, key_of_items(self.schema, self.tower_features["item"]), user, item, candidates)

    def tower_vectors(self, tower: str, batch: EmbeddedBatch) -> Tensor:
        """Return the vectors float32[size, width] of "user" or "item"; the batch has only its features."""
        vectors: Tensor = self.towers[tower](batch.flat())
        return F.normalize(vectors, dim=1) if self.normalize else vectors

    def _part(self, tower: str, batch: EmbeddedBatch) -> EmbeddedBatch:
        names = [name for name in self.tower_features[tower] if name in batch.embeddings]
        columns = [batch.numeric[:, part] for part in self.numbers[tower]]
        numeric = torch.cat(columns, dim=1) if columns else batch.numeric[:, :0]
        return EmbeddedBatch(batch.size, {name: batch[name] for name in names}, numeric)


def _divided(
    schema: Schema, item: Sequence[str], user: Sequence[str] | None
) -> Mapping[str, tuple[str, ...]]:
    for argument, names in {"item": item, "user": user or ()}.items():
        for name in names:
            if name not in schema.features:
                raise ConfigError(
                    f"{argument} names {name!r}, which is not a feature",
                    fix=f"{did_you_mean(name, schema.features)}features: {', '.join(schema.features)}",
                )
    if user is not None and (both := [name for name in user if name in item]):
        raise ConfigError(
            f"TwoTower has feature {both[0]!r} in item and in user",
            fix=f"remove {both[0]} from one of them",
        )
    chosen = tuple(n for n in schema.features if (n not in item if user is None else n in user))
    if not item or not chosen:
        raise ConfigError(
            f"TwoTower has no features of the {'user' if item else 'item'}",
            fix="name the item's features, such as item: [movie, genres]; all others belong to the user",
        )
    return {"user": chosen, "item": tuple(name for name in schema.features if name in item)}
