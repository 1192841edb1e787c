"""The targets of a model: what `Label` describes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from satrap.errors import ConfigError, did_you_mean
from satrap.optim import LARGEST
from satrap.runtime.arguments import checked
from satrap.runtime.formatting import described

MAX_DIM = 4096
"""Widest row, and most classes; a larger number is nearly always a typo."""

Kind = Literal["binary", "regression", "multiclass"]
Loss = Literal["squared", "absolute", "huber", "poisson"]


@checked()
@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """A target: 0 or 1, a number, or one of several classes.

    A model has one output per binary or regression label, and one per class of a multiclass label. The output
    of a binary label is its logit; the outputs of a multiclass label are the logits of a softmax. The output
    of a regression label is `(prediction - mean) / std`, so large numbers are learnt as fast as small ones.
    With loss "poisson" it is `log(prediction / mean)`.

    Args:
        name: name of the task.
        column: column of the data, default the name.
        kind: "binary" (default), "regression" (a number) or "multiclass" (one of `classes`).
        positive: binary: values (compared as text) that count as 1; every other value is 0. Default: the
            column must hold 0 and 1.
        threshold: binary: numbers at or above it count as 1.
        classes: multiclass: the values (compared as text), or their count n if they are 0 to n - 1.
        loss: regression: "squared" (default), "absolute", "huber" or "poisson" (for counts and other numbers
            >= 0).
        delta: regression with loss "huber": largest error, in units of `std`, whose loss is quadratic; beyond
            it the loss is linear. Default 1.
        mean: regression: mean of the label; default: recipes and `satrap.data.measure` take it from the
            training rows. 0 and `std` 1 leave the label unchanged. Binary: share of rows with a 1, if known;
            the models of `satrap.models` then initially predict it.
        std: regression, not poisson: its standard deviation; default as for `mean`.
        start_at_mean: regression: the models of `satrap.models` initially predict the mean; default False.
            Helps with a thousand rows or fewer.
        mask: column that is 1 in rows where this label is known, and 0 where it is ignored.
        implicit: binary: the label is 1 in every row, without a column; see `satrap.losses`.
    """

    name: str
    column: str | None = None
    kind: Kind = "binary"
    positive: tuple[str, ...] | None = None
    threshold: float | None = None
    classes: int | tuple[str, ...] | None = None
    loss: Loss | None = None
    delta: float | None = None
    mean: float | None = None
    std: float | None = None
    start_at_mean: bool | None = None
    mask: str | None = None
    implicit: bool | None = None

    def __repr__(self) -> str:
        return described(self)

    @property
    def outputs(self) -> int:
        """Columns of a model's output that belong to this label: the number of classes, else 1."""
        return self.classes if isinstance(self.classes, int) else len(self.classes or "1")

    @property
    def unmeasured(self) -> bool:
        """Whether this is a regression label whose mean or standard deviation is not known yet."""
        unknown = self.mean is None or (self.std is None and self.loss != "poisson")
        return self.kind == "regression" and unknown

    @property
    def first_output(self) -> float | None:
        """The initial output, which predicts the mean; None if models do not start at the mean."""
        if self.kind == "binary" and self.mean:
            return math.log(self.mean / (1 - self.mean))
        return 0.0 if self.start_at_mean else None

    @property
    def scale(self) -> tuple[float, float]:
        """(mean, std) of a regression label as its output uses them; 0 and 1 if unknown."""
        if self.loss == "poisson":
            return self.mean or 1.0, 1.0
        return self.mean or 0.0, self.std or 1.0


_OF_KIND: dict[str, tuple[str, ...]] = {
    "binary": ("positive", "threshold", "mean", "implicit"),
    "regression": ("loss", "delta", "mean", "std", "start_at_mean"),
    "multiclass": ("classes",),
}
"""Kind of label -> the arguments that only some kinds have."""


def check_label(label: Label) -> None:
    """Raise `ConfigError` if arguments of a label contradict each other."""
    where, loss = f"label {label.name!r}", label.loss
    for kind, arguments in _OF_KIND.items():
        wrong = [n for n in arguments if n not in _OF_KIND[label.kind] and getattr(label, n) is not None]
        if wrong:
            raise ConfigError(
                f"{where}: {wrong[0]} does not apply to kind {label.kind}",
                fix=f"set kind: {kind}, or remove {wrong[0]}",
            )
    if label.delta is not None and (loss != "huber" or not 0 < label.delta <= LARGEST):
        raise ConfigError(f"{where}: delta must be > 0, and needs loss: huber, got {label.delta}")
    if label.std is not None and (loss == "poisson" or not 0 < label.std <= LARGEST):
        raise ConfigError(f"{where}: std must be > 0, and unset with loss: poisson, got {label.std}")
    if label.kind == "binary" and label.mean is not None and not 0 < label.mean < 1:
        raise ConfigError(f"{where}: mean must be > 0 and < 1, got {label.mean}")
    if label.mean is not None and not (0 if loss == "poisson" else -LARGEST) < label.mean <= LARGEST:
        raise ConfigError(f"{where}: mean must be a number (> 0 with loss: poisson), got {label.mean}")
    if label.implicit and (label.column or label.positive or label.mask or label.threshold is not None):
        raise ConfigError(f"{where}: an implicit label has no column, positive, threshold or mask")
    if label.kind == "multiclass":
        _check_classes(where, label.classes)


def _check_classes(where: str, classes: int | tuple[str, ...] | None) -> None:
    count = classes if isinstance(classes, int) else len(set(classes or ()))
    if isinstance(classes, tuple) and count < len(classes):
        raise ConfigError(f"{where}: classes must be unique, got {list(classes)}")
    if isinstance(classes, bool) or not 2 <= count <= MAX_DIM:
        raise ConfigError(
            f"{where}: classes must have 2 to {MAX_DIM} values, got {count}",
            why="a model has one output per class",
            fix="list the values, classes: [red, green, blue], or give their count if they are 0, 1, 2, ...",
        )


def binary_label(name: str, wanted: str | None, labels: Sequence[Label]) -> Label:
    """Return the label of a feature with `mean_label`, default the first; `ConfigError` if not binary."""
    binary = {label.name: label for label in labels if label.kind == "binary" and not label.implicit}
    chosen = next(iter(binary), None) if wanted is None else wanted
    if chosen not in binary:
        raise ConfigError(
            f"feature {name!r}: mean_label needs a binary label" + (f", not {chosen!r}" if chosen else ""),
            why="it is the log odds of the share of rows with label 1",
            fix=f"{did_you_mean(chosen, binary)}use one of: {', '.join(binary)}"
            if chosen and binary
            else "remove mean_label, or use count, which needs no label",
        )
    return binary[chosen]
