"""Describes embedding optimizers and learning-rate schedules; the store executes the optimizers.

An optimizer is applied to a row at most once per update: gradients of duplicate ids are summed first. The
state belongs to the row, and all of it is *lazy*: a row's momentum, decay and moments change only in steps
that have a gradient for the row. `lr` is the base rate; a trainer scales it in every step, for example by a
`Schedule`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, ClassVar, TypeVar

from satrap.errors import ConfigError
from satrap.runtime.arguments import checked

__all__ = [
    "FTRL",
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "Constant",
    "Cosine",
    "Exponential",
    "Optimizer",
    "RowWiseAdagrad",
    "Schedule",
    "Staircase",
    "from_dict",
    "names",
    "schedule_from_dict",
]

LARGEST = 3.4028234663852886e38
"""Largest float32 number; the store computes in float32."""


def _require(valid: bool, owner: object, rule: str, value: object, fix: str = "") -> None:
    if not valid:
        raise ConfigError(f"{type(owner).__name__}: {rule}, got {value}", fix=fix)


@checked()
@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """Base of the embedding optimizers; use one of the subclasses.

    A step clips the gradient (`clip`), adds weight decay, applies the subclass's formula in float32, clamps
    the weights (`bound`), and rounds them if the table holds 16-bit weights.

    Extreme gradients behave as in PyTorch: a gradient whose square overflows (above 1.8e19) makes an Adagrad
    or Adam accumulator infinite, and the weight no longer changes; `clip` prevents this. 16-bit weights are
    clamped to the largest number of their format; float32 weights may overflow unless `bound` is set.

    Args:
        lr: learning rate, > 0.
        clip: largest Euclidean norm of one row's gradient in one step; longer gradients are scaled down to
            it. Default None: no limit.
        bound: weights are clamped to [-bound, bound] after each step. Default None: no limit.
    """

    name: ClassVar[str] = ""
    lr: float
    clip: float | None = None
    bound: float | None = None

    def __post_init__(self) -> None:
        lr_is_right, fix = 0 < self.lr <= LARGEST, "give a positive learning rate"
        _require(lr_is_right, self, "lr must be > 0 in float32", self.lr, fix)
        for key in ("clip", "bound"):
            value = getattr(self, key)
            _require(value is None or 0 < value <= LARGEST, self, f"{key} must be > 0 in float32", value)
        for key in ("weight_decay", "initial_accumulator", "l1", "l2"):
            value = getattr(self, key, 0.0)
            _require(0 <= value <= LARGEST, self, f"{key} must be >= 0 in float32", value)
        for key in ("eps", "beta"):
            value = getattr(self, key, 1.0)
            _require(1e-37 <= value <= LARGEST, self, f"{key} must be > 0 in float32", value)
        betas = getattr(self, "betas", (0.0, 0.0))
        _require(len(betas) == 2, self, "betas must be two numbers", betas)
        for value in (*betas, getattr(self, "momentum", 0.0)):
            _require(0 <= value < 1, self, "decays must be in [0, 1)", value)

    def to_dict(self) -> dict[str, Any]:
        """Return `{"name": ..., **arguments}`, the form used in recipes and checkpoints."""
        return {"name": self.name, **asdict(self)}


@checked()
@dataclass(frozen=True, slots=True, kw_only=True)
class SGD(Optimizer):
    """Stochastic gradient descent, `w -= lr * g`, as `torch.optim.SGD`.

    With momentum: `b = momentum * b + g; w -= lr * b`, or with `nesterov` `w -= lr * (g + momentum * b)`.
    State: none; with momentum one float32 per weight.

    Args:
        momentum: decay of the running sum b, in [0, 1); default 0.
        nesterov: look ahead along b; needs momentum. Default False.
        weight_decay: L2 penalty, `weight_decay * w` is added to the gradient; default 0.
    """

    name: ClassVar[str] = "sgd"
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        Optimizer.__post_init__(self)
        _require(not self.nesterov or self.momentum > 0, self, "nesterov needs momentum > 0", self.momentum)


@checked()
@dataclass(frozen=True, slots=True, kw_only=True)
class Adagrad(Optimizer):
    """Adagrad: `a += g*g; w -= lr * g / (sqrt(a) + eps)`, as `torch.optim.Adagrad`.

    Duchi et al., JMLR 2011. State: one float32 per weight.

    Args:
        eps: added to the square root, default 1e-10.
        initial_accumulator: start value of `a`, default 0.
        weight_decay: L2 penalty, `weight_decay * w` is added to the gradient; default 0.
    """

    name: ClassVar[str] = "adagrad"
    eps: float = 1e-10
    initial_accumulator: float = 0.0
    weight_decay: float = 0.0


@checked()
@dataclass(frozen=True, slots=True, kw_only=True)
class RowWiseAdagrad(Optimizer):
    """Adagrad with one accumulator per row: `a += mean(g*g); w -= lr * g / (sqrt(a) + eps)`.

    The default for embeddings: nearly Adagrad's accuracy at 4 bytes of state per row.

    Args:
        eps: added to the square root, default 1e-10.
        initial_accumulator: start value of `a`, default 0.
        weight_decay: L2 penalty, `weight_decay * w` is added to the gradient; default 0.
    """

    name: ClassVar[str] = "rowwise_adagrad"
    eps: float = 1e-10
    initial_accumulator: float = 0.0
    weight_decay: float = 0.0


@checked()
@dataclass(frozen=True, slots=True, kw_only=True)
class Adam(Optimizer):
    """Lazy Adam: a row's moments change only in steps that have a gradient for the row.

    `m = b1*m + (1-b1)*g; v = b2*v + (1-b2)*g*g; w -= lr * (m/(1-b1^t)) / (sqrt(v/(1-b2^t)) + eps)` with `t`
    the number of this row's own steps: on rows touched in every step it equals `torch.optim.Adam`.
    Kingma and Ba, ICLR 2015. State: two float32 per weight and one step per row.

    Args:
        betas: decay of the two moments, each in [0, 1).
        eps: added to the square root, default 1e-8.
        weight_decay: L2 penalty, `weight_decay * w` is added to the gradient; default 0.
    """

    name: ClassVar[str] = "adam"
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0


@checked()
@dataclass(frozen=True, slots=True, kw_only=True)
class AdamW(Optimizer):
    """Lazy Adam with decoupled decay: `w *= 1 - lr * weight_decay`, then Adam's step on the plain gradient.

    On rows touched in every step it equals `torch.optim.AdamW`. Loshchilov and Hutter, ICLR 2019. State: two
    float32 per weight and one step per row.

    Args:
        betas: decay of the two moments, each in [0, 1).
        eps: added to the square root, default 1e-8.
        weight_decay: share of a weight that a step removes, times lr; default 0.01.
    """

    name: ClassVar[str] = "adamw"
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01


@checked()
@dataclass(frozen=True, slots=True, kw_only=True)
class FTRL(Optimizer):
    """FTRL-proximal: adaptive steps whose L1 penalty makes weights exactly 0.

    `s = (sqrt(n + g*g) - sqrt(n)) / lr; z += g - s*w; n += g*g`, then `w = 0` where `|z| <= l1`, else
    `w = (sign(z)*l1 - z) / ((beta + sqrt(n)) / lr + l2)`. McMahan et al., KDD 2013, where `lr` is called
    alpha and weights start at 0 (`initial_scale=0`). With other initial weights, `z` starts at the value
    whose minimum is the initial weight, so a zero gradient changes nothing. State: two float32 per weight.

    Args:
        beta: added to the square root, > 0; default 1.
        l1: strength of the L1 penalty, default 0.
        l2: strength of the L2 penalty, default 0.
    """

    name: ClassVar[str] = "ftrl"
    beta: float = 1.0
    l1: float = 0.0
    l2: float = 0.0


KINDS: tuple[type[Optimizer], ...] = (SGD, Adagrad, RowWiseAdagrad, Adam, AdamW, FTRL)
"""All embedding optimizers; `Optimizer.__subclasses__()` also lists classes that `slots=True` replaced."""


EMBEDDING_DEFAULT = RowWiseAdagrad(lr=0.05)
"""Default embedding optimizer, in Python and in recipes."""

DENSE_LR = 0.001
"""Default learning rate of the network's optimizer, Adam."""


def names() -> tuple[str, ...]:
    """Return the recipe names of all embedding optimizers."""
    return tuple(kind.name for kind in KINDS)


@checked()
def from_dict(settings: Mapping[str, Any]) -> Optimizer:
    """Build an optimizer from `{"name": ..., **arguments}`, as `to_dict` returns it.

    Raises:
        ConfigError: a name or argument is unknown or missing.
    """
    kind, arguments = _kind(settings, KINDS, "embedding optimizer")
    return kind(**arguments)


@checked()
@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Base of the learning-rate schedules: a factor on every learning rate, by step; use a subclass.

    A schedule has no state: the factor depends only on the number of completed steps, so all processes agree
    and a resumed run continues seamlessly.

    Args:
        warmup: steps over which the factor grows linearly, `(step + 1) / warmup`; default 0.
    """

    name: ClassVar[str] = ""
    warmup: int = 0

    def __post_init__(self) -> None:
        _require(self.warmup >= 0, self, "warmup must be >= 0", self.warmup)
        for key in ("steps", "every"):
            value = getattr(self, key, 1)
            _require(value >= 1, self, f"{key} must be >= 1", value)
        value = getattr(self, "gamma", 1.0)
        _require(0 < value <= 1, self, "gamma must be in (0, 1]", value)
        value = getattr(self, "final", 0.0)
        _require(0 <= value <= 1, self, "final must be in [0, 1]", value)

    def factor(self, step: int) -> float:
        """Return the factor on the learning rates of step 0, 1, 2 ..."""
        return min(1.0, (step + 1) / self.warmup if self.warmup else 1.0) * self._decay(step)

    def _decay(self, step: int) -> float:
        return 1.0

    def to_dict(self) -> dict[str, Any]:
        """Return `{"name": ..., **arguments}`, the form used in recipes and checkpoints."""
        return {"name": self.name, **asdict(self)}


@checked()
@dataclass(frozen=True, slots=True, kw_only=True)
class Constant(Schedule):
    """The factor 1, after the warm-up."""

    name: ClassVar[str] = "constant"


@checked()
@dataclass(frozen=True, slots=True, kw_only=True)
class Cosine(Schedule):
    """From 1 to `final` along half a cosine, then `final`; as `torch.optim.lr_scheduler.CosineAnnealingLR`.

    Args:
        steps: number of steps of the decay, >= 1.
        final: factor after the decay, in [0, 1]; default 0.
    """

    name: ClassVar[str] = "cosine"
    steps: int
    final: float = 0.0

    def _decay(self, step: int) -> float:
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * min(1.0, step / self.steps))) / 2


@checked()
@dataclass(frozen=True, slots=True, kw_only=True)
class Exponential(Schedule):
    """`gamma ** step`, as `torch.optim.lr_scheduler.ExponentialLR`.

    Args:
        gamma: factor per step, in (0, 1].
    """

    name: ClassVar[str] = "exponential"
    gamma: float

    def _decay(self, step: int) -> float:
        return float(self.gamma**step)


@checked()
@dataclass(frozen=True, slots=True, kw_only=True)
class Staircase(Schedule):
    """`gamma ** (step // every)`, as `torch.optim.lr_scheduler.StepLR`.

    Args:
        every: steps between two drops, >= 1.
        gamma: factor per drop, in (0, 1]; default 0.1.
    """

    name: ClassVar[str] = "staircase"
    every: int
    gamma: float = 0.1

    def _decay(self, step: int) -> float:
        return float(self.gamma ** (step // self.every))


SCHEDULES: tuple[type[Schedule], ...] = (Constant, Cosine, Exponential, Staircase)
"""All learning-rate schedules."""


@checked()
def schedule_from_dict(settings: Mapping[str, Any]) -> Schedule:
    """Build a schedule from `{"name": ..., **arguments}`, as `to_dict` returns it.

    Raises:
        ConfigError: a name or argument is unknown or missing.
    """
    kind, arguments = _kind(settings, SCHEDULES, "learning-rate schedule")
    return kind(**arguments)


Kind = TypeVar("Kind", type[Optimizer], type[Schedule])


def _kind(settings: Mapping[str, Any], kinds: tuple[Kind, ...], what: str) -> tuple[Kind, dict[str, Any]]:
    """Return the class that the settings name, and its arguments."""
    arguments = {k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()}
    name = arguments.pop("name", None)
    for kind in kinds:
        if kind.name == name:
            allowed = [f.name for f in fields(kind)]
            for key in arguments:
                if key not in allowed:
                    raise ConfigError(f"{kind.name} has no argument {key!r}", fix=f"use {', '.join(allowed)}")
            for field in fields(kind):
                if field.default is MISSING and field.name not in arguments:
                    raise ConfigError(f"{kind.name} needs {field.name}", fix=f"add {field.name}")
            return kind, arguments
    message = f"{what} {name!r} is unknown" if name else f"the settings of a {what} need a name"
    raise ConfigError(message, fix=f"use one of {', '.join(k.name for k in kinds)}")


def __dir__() -> list[str]:
    return sorted(__all__)
