"""Losses of models that compare vectors, such as two towers; training executes them.

`Trainer(loss=satrap.losses.SampledSoftmax(negatives=256))` in Python, `training.loss: {name: sampled_softmax,
negatives: 256}` in a recipe. The samples are pairs of a query, such as a user, and an item. Every row counts
as a pair if the label is implicit; else rows with label 1 do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from satrap.errors import ConfigError, did_you_mean
from satrap.runtime.arguments import checked

__all__ = ["BPR", "PairLoss", "SampledSoftmax", "from_dict"]


@checked()
@dataclass(frozen=True, slots=True, kw_only=True)
class PairLoss:
    """Base of the losses that compare each query's item with other items, the negatives.

    All queries of a batch share their negatives. With several workers, the queries of all workers do. A
    negative that is the query's own item does not count.

    Args:
        in_batch: whether the items of the other samples are negatives; default True.
        negatives: number of items that each worker draws for a batch, with replacement; default 0. They are
            drawn from the items of the training rows, and of histories whose events the model predicts, as a
            function of seed, epoch and batch.
        power: items are drawn with a probability proportional to (number of their rows) ** power: 0, the
            default, is uniform, 1 the frequency.
        listed: a feature whose ids are negatives, such as a list of the items that were shown and not
            clicked. It has the table of the feature that identifies items. A row's list also counts for the
            other queries, as in Karpukhin et al., "Dense Passage Retrieval for Open-Domain Question
            Answering", EMNLP 2020; lists of rows that do not count, and missing ids, do not. If an item has
            more than one feature, the others come from its training rows, and ids without such rows do not
            count. Default: none.
        hardest: count only this many negatives of each query, those with the highest scores; default all.
    """

    name: ClassVar[str]
    in_batch: bool = True
    negatives: int = 0
    power: float = 0.0
    listed: str | None = None
    hardest: int | None = None

    def __post_init__(self) -> None:
        if self.negatives < 0 or not (self.in_batch or self.negatives or self.listed):
            raise ConfigError(
                f"{type(self).__name__} has no negatives: in_batch is {str(self.in_batch).lower()} and "
                f"negatives is {self.negatives}",
                why="without other items to compare with, every vector would be a solution",
                fix="set in_batch: true, negatives: 256, or listed: FEATURE",
            )
        if not (math.isfinite(self.power) and self.power >= 0):
            raise ConfigError(f"{type(self).__name__}: power must be >= 0, got {self.power}")
        if self.hardest is not None and self.hardest < 1:
            raise ConfigError(f"{type(self).__name__}: hardest must be >= 1, got {self.hardest}")

    @property
    def counts_items(self) -> bool:
        """Whether training needs the items of the training rows and their frequencies."""
        return self.negatives > 0

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for `from_dict`."""
        return {"name": self.name, **asdict(self)}


@checked()
@dataclass(frozen=True, slots=True, kw_only=True)
class SampledSoftmax(PairLoss):
    """Softmax cross-entropy of each query's item among its negatives.

    `-log(exp(s) / (exp(s) + sum over negatives of exp(s_j)))` with `s_j = <query, item_j> / temperature`.
    With `logq`, every s_j is reduced by the logarithm of the expected number of times that item j is in the
    batch or drawn, so that popular items, which are negatives more often, are not pushed down: Bengio and
    Senécal, "Adaptive importance sampling", IEEE TNN 2008; Yi et al., "Sampling-Bias-Corrected Neural
    Modeling for Large Corpus Item Recommendations", RecSys 2019.

    Args:
        temperature: divides all scores, > 0; default 1. For vectors of length 1, 0.05 to 0.1.
        logq: correct for the frequency of items; default False. Training then counts the items of the
            training rows before it begins. In a stream, it estimates their frequency from the batches so far,
            see `satrap.train.step.item_rates.ItemRates`.
    """

    name: ClassVar[str] = "sampled_softmax"
    temperature: float = 1.0
    logq: bool = False

    def __post_init__(self) -> None:
        PairLoss.__post_init__(self)
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise ConfigError(f"SampledSoftmax: temperature must be > 0, got {self.temperature}")

    @property
    def counts_items(self) -> bool:
        """Whether training needs the items of the training rows and their frequencies."""
        return self.negatives > 0 or self.logq


@checked()
@dataclass(frozen=True, slots=True, kw_only=True)
class BPR(PairLoss):
    """Bayesian personalized ranking: mean over negatives of `-log(sigmoid(s - s_j))`, s the scores.

    Rendle et al., "BPR: Bayesian Personalized Ranking from Implicit Feedback", UAI 2009.
    """

    name: ClassVar[str] = "bpr"


KINDS: tuple[type[PairLoss], ...] = (SampledSoftmax, BPR)
"""All losses of pairs."""


@checked()
def from_dict(settings: Mapping[str, Any]) -> PairLoss:
    """Build a loss from `{"name": ..., **arguments}`, as `to_dict` returns it.

    Raises:
        ConfigError: the name is unknown.
    """
    kinds = {kind.name: kind for kind in KINDS}
    arguments = dict(settings)
    name = arguments.pop("name", None)
    if name not in kinds:
        raise ConfigError(
            f"loss {name!r} in settings is unknown",
            fix=f"{did_you_mean(str(name), kinds)}use one of {', '.join(kinds)}",
        )
    return kinds[name](**arguments)


def __dir__() -> list[str]:
    return sorted(__all__)
