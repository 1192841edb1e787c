"""Parts shared by several models: checks of the schema, the MLP, first-order, pairwise and cross terms."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from satrap.batch import EmbeddedBatch
from satrap.errors import ConfigError
from satrap.models.layers.linear import Linear, XavierLinear
from satrap.schema import Label, Schema
from satrap.sequences import SequenceGroup

NEEDS = {
    "ids": "at least one categorical feature",
    "sequence": "exactly one sequence of features, the history",
    "item": "the features of the item, in the argument `item`",
    "target": "for each feature of the history, a feature of the item with the same table",
    "one label": "one label of one output",
    "click, conversion": "two binary labels, the click and then the conversion",
}
"""The parts of a schema that a model may need -> their description."""


class Ranker(nn.Module):
    """Base of satrap's models: keeps the constructor's arguments for checkpoints.

    `satrap.models.create` with `schema` and `arguments` builds the same model.

    Attributes:
        needs: the parts of a schema that the model needs, keys of `NEEDS`.
        one_width: whether the model reads vectors through `satrap.models.layers.fields.EqualWidth`.
    """

    needs: ClassVar[tuple[str, ...]] = ()
    one_width: ClassVar[bool] = False
    schema: Schema
    arguments: dict[str, Any]

    def __new__(cls, *schema: Schema, **arguments: Any) -> Self:
        """Keep the arguments; `__init__` checks them."""
        model = super().__new__(cls)
        named = arguments.pop("schema", None)
        model.__dict__.update(arguments=arguments, schema=schema[0] if schema else named)
        return model


def num_outputs(schema: Schema) -> int:
    """Return the columns of the output, see `Label`; raise `ConfigError` if the schema has no labels."""
    return len(first_logits(schema.labels))


def one_output(schema: Schema, model: str) -> list[float | None]:
    """Return the initial output of the only label; raise `ConfigError` for no label or several outputs."""
    first = first_logits(schema.labels)
    if len(first) != 1:
        raise ConfigError(
            f"{model} has one output, but the labels need {len(first)}",
            fix="keep one label of one output, or use dnn, mmoe or ple",
        )
    return first


def check_pooled(schema: Schema, model: str, but: Collection[str] = ()) -> None:
    """Raise `ConfigError` if a feature, except those in `but`, has pooling "none" and so no single vector."""
    unpooled = [k for k, feature in schema.categorical.items() if feature.pooling == "none" and k not in but]
    if unpooled:
        raise ConfigError(
            f"{model} takes one vector per feature, but pooling is none in {', '.join(unpooled)}",
            fix="set pooling to sum, mean, max or sqrtn, use din or hstu for a history, or your own model",
        )


def history_of(schema: Schema, model: str) -> tuple[SequenceGroup, int]:
    """Return the only sequence of a schema, and its largest number of events.

    Raises `ConfigError` unless the schema has exactly one sequence with a limit, or if another feature has
    pooling "none".
    """
    groups = list(schema.sequences.values())
    limits = [group.max_values for group in groups if group.max_values is not None]
    if len(groups) != 1 or not limits:
        raise ConfigError(
            f"{model} needs exactly one sequence of features, with max_values",
            why="the model learns from the events of one history, whose number must be limited",
            fix="set sequence: history in the columns of the history, and max_values: 50 in one of them",
        )
    check_pooled(schema, model, but=groups[0].ids)
    return groups[0], limits[0]


def check_whole(what: str, value: int) -> None:
    """Raise `ConfigError` unless `value` is a whole number >= 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{what} must be a whole number >= 1, got {value!r}")


def check_dropout(dropout: float) -> None:
    """Raise `ConfigError` unless a probability of dropout is >= 0 and < 1."""
    if not isinstance(dropout, int | float) or not 0 <= dropout < 1:
        raise ConfigError(f"dropout must be >= 0 and < 1, got {dropout!r}")


def check_categorical(schema: Schema, model: str) -> None:
    """Raise `ConfigError` if the schema has no categorical feature."""
    if not schema.categorical:
        raise ConfigError(
            f"{model} needs at least one categorical feature",
            fix="add a feature such as user: {dim: 16}, or use lr or dnn",
        )


def input_width(schema: Schema, model: str) -> int:
    """Return the number of columns of `batch.flat()`: all dims, then numbers; raises as `check_pooled`."""
    check_pooled(schema, model)
    return flat_width(schema)


def flat_width(schema: Schema) -> int:
    """Return the number of columns of `batch.flat()`, in which features with pooling "none" have no part."""
    pooled = (feature.dim for feature in schema.categorical.values() if feature.pooling != "none")
    return sum(pooled) + schema.numeric_width


def with_linear(schema: Schema) -> dict[str, int]:
    """Return feature -> row width `dim + outputs`: the last columns are its first-order weights."""
    return {name: feature.dim + num_outputs(schema) for name, feature in schema.categorical.items()}


def check_hidden(hidden: Sequence[int]) -> None:
    """Raise `ConfigError` unless `hidden` is a list of whole numbers >= 1."""
    if isinstance(hidden, str) or not isinstance(hidden, Sequence):
        raise ConfigError(f"hidden must be a list of whole numbers, got {hidden!r}", fix="hidden: [256, 128]")
    for size in hidden:
        check_whole("the width of a hidden layer", size)


def mlp(
    width: int,
    hidden: Sequence[int],
    *,
    dropout: float = 0.0,
    batch_norm: bool = False,
    activation: Callable[[int], nn.Module] = lambda _: nn.ReLU(),
) -> tuple[nn.Sequential, int]:
    """Return layers of Linear, [BatchNorm], activation, [Dropout] on `width` columns, and their output width.

    Weights start Xavier-uniform (Glorot and Bengio, AISTATS 2010), biases at 0. Without hidden layers the
    result is the identity. `activation` makes a module from the width of its layer, default ReLU. Raises
    `ConfigError` for a width below 1 or a dropout outside [0, 1).
    """
    check_hidden(hidden)
    check_dropout(dropout)
    layers: list[nn.Module] = []
    for size in hidden:
        layers.append(Linear(width, size))
        layers += [nn.BatchNorm1d(size)] if batch_norm else []
        layers.append(activation(size))
        layers += [nn.Dropout(dropout)] if dropout else []
        width = size
    return nn.Sequential(*layers), width


def beside(layer: nn.Module, kept: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return a tensor as it is, and a layer's output: a step of a `chain` that carries a tensor along."""
    return kept, layer(x)


class OutputLayer(XavierLinear):
    """A model's last layer, from `width` columns to the outputs of labels; Xavier-uniform, zero bias.

    For a binary label with a known mean, weights start at 0 and the bias at the log odds. So the model
    initially predicts the mean for every sample: no steps are spent on learning it, and a small data set need
    not correct the output of random weights.
    """

    def __init__(self, width: int, labels: Sequence[Label], *, bias: bool = True) -> None:
        self.first = first_logits(labels)
        super().__init__(width, len(self.first), bias=bias)

    def reset_parameters(self) -> None:
        """Set the initial weights."""
        super().reset_parameters()
        with torch.no_grad():
            for output, logit in enumerate(self.first):
                if logit is not None:
                    self.weight[output] = 0
                    if self.bias is not None:
                        self.bias[output] = logit


def first_logits(labels: Sequence[Label]) -> list[float | None]:
    """Return a model's initial output of each label or class; None: unknown.

    Raises `ConfigError` if there are no labels.
    """
    if not labels:
        raise ConfigError("the schema has no labels", why="a model has one output per label or class")
    return [odds for label in labels for odds in [label.first_output] * label.outputs]


def set_first(bias: Tensor, logits: Sequence[float | None]) -> None:
    """Set a bias to the initial outputs of a model; 0 where they are unknown."""
    with torch.no_grad():
        bias.copy_(torch.tensor([logit or 0.0 for logit in logits]))


class FirstOrder(nn.Module):
    """`bias + sum of the rows' first-order weights + numbers @ w`: logistic regression's logit.

    The bias starts at the log odds of known means, the weights at 0, so the first logit depends only on the
    rows and the bias.
    """

    def __init__(self, schema: Schema) -> None:
        super().__init__()
        outputs, numbers = num_outputs(schema), schema.numeric_width
        self.first = first_logits(schema.labels)
        self.bias = nn.Parameter(torch.empty(outputs))
        self.weight = nn.Parameter(torch.empty(numbers, outputs)) if numbers else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the initial weights."""
        set_first(self.bias, self.first)
        if self.weight is not None:
            nn.init.zeros_(self.weight)

    def forward(self, summed: Tensor, numeric: Tensor) -> Tensor:
        """Return float32[size, outputs] from the summed row weights [size, outputs] and numbers [size, K]."""
        bias = self.bias if self.weight is None else torch.addmm(self.bias, numeric, self.weight)
        return summed + bias


class SecondOrder(nn.Module):
    """Sum of the dot products of all pairs of fields, in O(fields): `((sum v)^2 - sum v^2) / 2`.

    Rendle, "Factorization Machines", ICDM 2010, eq. 5. A numeric field's vector is a learned vector times
    its value. With several outputs, each has its own weights of the `dim` factors, which start at 1.
    """

    def __init__(self, schema: Schema, dim: int) -> None:
        super().__init__()
        outputs, numbers = num_outputs(schema), schema.numeric_width
        self.vectors = nn.Parameter(torch.empty(numbers, dim)) if numbers else None
        self.factors = nn.Parameter(torch.empty(dim, outputs)) if outputs > 1 else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the initial weights."""
        if self.vectors is not None:
            nn.init.normal_(self.vectors, std=0.01)
        if self.factors is not None:
            nn.init.ones_(self.factors)

    def forward(self, vectors: Tensor, numeric: Tensor) -> Tensor:
        """Return float32[size, outputs] from vectors [size, fields, dim] and numbers [size, K]."""
        total, squares = vectors.sum(1), vectors.square().sum(1)
        if self.vectors is not None:
            total = total + numeric @ self.vectors
            squares = squares + numeric.square() @ self.vectors.square()
        pairs = 0.5 * (total.square() - squares)
        return pairs.sum(1, keepdim=True) if self.factors is None else pairs @ self.factors


class CrossLayer(nn.Module):
    """One cross layer, `x0 * (W x + b) + x`; with a rank, `W = U V`.

    Wang et al., "DCN V2", WWW 2021, eq. 1 and 2. With `zero`, W starts at 0, so the layer starts as identity.
    With `gated`, the product is also multiplied by `sigmoid(G x)`, where G has the rank of W: Wang et al.,
    "Towards Deeper, Lighter and Interpretable Cross Network for CTR Prediction", CIKM 2023, eq. 2.
    """

    def __init__(self, width: int, rank: int | None, *, zero: bool = False, gated: bool = False) -> None:
        super().__init__()
        down = [] if rank is None else [Linear(width, rank, bias=False)]
        self.project = nn.Sequential(*down, Linear(rank or width, width, gain=0.0 if zero else 1.0))
        self.gate = None
        if gated:
            down = [] if rank is None else [Linear(width, rank, bias=False)]
            self.gate = nn.Sequential(*down, Linear(rank or width, width, bias=False))

    def forward(self, x0: Tensor, x: Tensor) -> Tensor:
        """Return float32[size, width] from the inputs of the first layer and of this layer, of that shape."""
        factor = x0 if self.gate is None else x0 * torch.sigmoid(self.gate(x))
        return torch.addcmul(x, factor, self.project(x))


class FeatureGate(nn.Module):
    """Weights in (0, 2) for the columns of a network's input, computed from chosen features.

    `2 * sigmoid(MLP(features))`, one hidden layer; without features `2 * sigmoid(c)` with a learned c that
    starts at 0, so the gate starts at 1. Mao et al., "FinalMLP", AAAI 2023, section 3.2. Raises `ConfigError`
    if a name is not a categorical feature.
    """

    def __init__(self, schema: Schema, features: Sequence[str]) -> None:
        super().__init__()
        unknown = [name for name in features if name not in schema.categorical]
        if unknown:
            raise ConfigError(
                f"context feature {unknown[0]!r} is not a categorical feature",
                fix=f"categorical features: {', '.join(schema.categorical) or 'none'}",
            )
        self.features = tuple(features)
        width = sum(schema.categorical[name].dim for name in features)
        columns = input_width(schema, "FinalMLP")
        self.score = nn.Sequential(*mlp(width, [64])[0], XavierLinear(64, columns)) if width else None
        self.constant = None if width else nn.Parameter(torch.empty(columns))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the initial weights."""
        if self.constant is not None:
            nn.init.zeros_(self.constant)

    def forward(self, batch: EmbeddedBatch) -> Tensor:
        """Return float32[size, columns of batch.flat()], or [columns] without features."""
        if self.score is None:
            assert self.constant is not None
            return 2 * torch.sigmoid(self.constant)
        context = torch.cat([batch[name] for name in self.features], dim=1)
        return 2 * torch.sigmoid(self.score(context))
