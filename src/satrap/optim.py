"""Embedding optimizers: what one row's step is. The store executes them; these objects only describe.

Every optimizer here is applied to a row at most once per update: gradients of duplicate ids are summed
first. State lives and dies with the row. `lr` is the base rate; a trainer may scale it per step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

from satrap.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """Base of the embedding optimizers; use one of the subclasses.

    Args:
        lr: learning rate, > 0.
    """

    name: ClassVar[str] = ""
    lr: float

    def __post_init__(self) -> None:
        if not self.lr > 0:
            raise ConfigError(
                f"{type(self).__name__}: lr must be > 0, got {self.lr}", fix="give a positive learning rate"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return `{"name": ..., **arguments}`, the form used in recipes and checkpoints."""
        return {"name": self.name, **asdict(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class SGD(Optimizer):
    """Plain stochastic gradient descent, `w -= lr * g`, as `torch.optim.SGD`. No state."""

    name: ClassVar[str] = "sgd"


@dataclass(frozen=True, slots=True, kw_only=True)
class Adagrad(Optimizer):
    """Adagrad: `a += g*g; w -= lr * g / (sqrt(a) + eps)`, as `torch.optim.Adagrad`.

    Duchi et al., JMLR 2011. State: one float32 per weight.

    Args:
        eps: added to the root, default 1e-10.
        initial_accumulator: start value of `a`, default 0.
    """

    name: ClassVar[str] = "adagrad"
    eps: float = 1e-10
    initial_accumulator: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RowWiseAdagrad(Optimizer):
    """Adagrad with one accumulator per row: `a += mean(g*g); w -= lr * g / (sqrt(a) + eps)`.

    The house default for recommenders: nearly Adagrad's accuracy at 4 bytes of state per row.

    Args:
        eps: added to the root, default 1e-10.
        initial_accumulator: start value of `a`, default 0.
    """

    name: ClassVar[str] = "rowwise_adagrad"
    eps: float = 1e-10
    initial_accumulator: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Adam(Optimizer):
    """Lazy Adam: the row's moments move only when the row has a gradient.

    `m = b1*m + (1-b1)*g; v = b2*v + (1-b2)*g*g; w -= lr * (m/(1-b1^t)) / (sqrt(v/(1-b2^t)) + eps)` with `t`
    the number of this row's own steps: on rows touched in every step it equals `torch.optim.Adam`.
    Kingma and Ba, ICLR 2015. State: two float32 per weight and one step per row.

    Args:
        betas: decay of the two moments, each in [0, 1).
        eps: added to the root, default 1e-8.
    """

    name: ClassVar[str] = "adam"
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8


KINDS: tuple[type[Optimizer], ...] = (SGD, Adagrad, RowWiseAdagrad, Adam)
"""All of them; `Optimizer.__subclasses__()` would also list the classes that `slots=True` replaced."""


def names() -> tuple[str, ...]:
    """Return the recipe names of all embedding optimizers."""
    return tuple(kind.name for kind in KINDS)


def from_dict(settings: Mapping[str, Any]) -> Optimizer:
    """Build an optimizer from `{"name": ..., **arguments}`, as `to_dict` returns it.

    Raises:
        ConfigError: an unknown name or argument.
    """
    arguments = {k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()}
    name = arguments.pop("name", None)
    for kind in KINDS:
        if kind.name == name:
            return _build(kind, arguments)
    raise ConfigError(f"embedding optimizer {name!r} is unknown", fix=f"use one of {', '.join(names())}")


def _build(kind: type[Optimizer], arguments: dict[str, Any]) -> Optimizer:
    known = [f.name for f in fields(kind)]
    for key in arguments:
        if key not in known:
            raise ConfigError(f"{kind.name} has no argument {key!r}", fix=f"use {', '.join(known)}")
    if "lr" not in arguments:
        raise ConfigError(f"{kind.name} needs a learning rate", fix="add lr")
    return kind(**arguments)
