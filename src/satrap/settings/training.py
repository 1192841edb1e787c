"""Decay of learning rates, limits of a step, and early stopping."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from satrap import compatibility
from satrap.errors import ConfigError, did_you_mean
from satrap.optim import Constant, Schedule
from satrap.runtime.arguments import checked
from satrap.schema import Label
from satrap.settings.ranking import Ranking

Metric = Callable[..., Any]
"""A function of the samples that returns a number; or a torchmetrics object or class. See
`OwnMetrics`."""

Precision = Literal["float32", "bfloat16", "float16"]
"""Number format of a network's arithmetic."""

RESERVED = ("epoch", "event", "step")
"""Names in the lines of `metrics.jsonl` that are not metrics."""

MONITORS = ("auc", "logloss")


@checked()
@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """Options for a trainer's steps.

    Args:
        lr_schedule: factor on all learning rates, by step.
        clip_norm: maximum norm of the gradient over all parameters and rows; default no limit.
        plateau: multiply all learning rates by this factor when an evaluation does not improve the validation
            metric (see `monitor`).
        patience: stop after this number of evaluations in a row without a better validation metric (see
            `monitor`), and keep the best weights.
        monitor: the validation metric that decides `plateau` and `patience`: auc, logloss, one of `metrics`,
            or one of `ranking`, such as ndcg@10. logloss is less noisy than auc if one class is rare. Unless
            all labels are binary, the loss replaces both.
        precision: number format of the network's arithmetic. bfloat16: matrix products take 16-bit inputs,
            which is faster on CPUs with AVX-512 BF16 or AMX and on GPUs; weights, gradients, loss and
            embedding rows stay float32. float16: the same with a smaller range and a scaled loss, for GPUs
            without bfloat16; slow on most CPUs.
        microbatches: number of microbatches per batch, whose forward and backward passes run one after
            another, default 1. Their gradients make one step, equal to the step of the whole batch up to
            rounding; only the activations of one microbatch are in memory at a time. A custom loss must be a
            mean over the samples.
        staleness_warmup: steps over which staleness grows from 0 to its value; null: 20 steps per unit of
            staleness.
        checkpoint_activations: whether blocks of the network keep only their input and recompute the rest in
            the backward pass: bit-identical results, less memory, about a third more arithmetic. Not with
            batch normalisation. In a pipeline, a stage of n layers recomputes segments of about sqrt(n)
            layers.
        compile: whether to compile blocks of the network with torch.compile. Compilation takes up to minutes
            at the start and needs a C++ compiler, or Triton on a CUDA device. Results are equal up to
            rounding. Not with `checkpoint_activations`, `sharded`, or a mesh with `tensor` or `pipeline`.
        metrics: custom metrics, see `satrap.metrics.OwnMetrics`. As the monitor, lower values of a metric are
            better if it has an attribute `higher_is_better` that is False.
        ranking: metrics of ranked lists in evaluations, for example `{at: [5, 10]}`; default none, or with an
            implicit label `{at: [10], among: items}`, whose ndcg is then the default monitor.

    In Python, null is None, and by default `plateau` and `patience` are None: never. For `clip_norm` with
    several workers see `satrap.dense.DataParallelBackend`, for "float16" `satrap.dense.LossScale`. A trained
    model scores in the same precision, and without `compile`.

    Raises:
        ConfigError: an unknown precision or monitor, microbatches below 1, or `compile` with
            `checkpoint_activations`.
    """

    lr_schedule: Schedule = field(default_factory=Constant)
    clip_norm: float | None = None
    plateau: float | None = None
    patience: int | None = None
    monitor: str = "auc"
    precision: Precision = "float32"
    microbatches: int = 1
    staleness_warmup: int | None = None
    checkpoint_activations: bool = False
    compile: bool = False
    metrics: tuple[Metric, ...] = ()
    ranking: Ranking | None = None

    def __post_init__(self) -> None:
        if self.microbatches < 1:
            raise ConfigError(f"microbatches must be >= 1, got {self.microbatches}")
        compatibility.check(self.settings)
        allowed = [*MONITORS, *self.directions]
        if self.monitor not in allowed:
            raise ConfigError(
                f"monitor {self.monitor!r} is not a metric of the validation rows",
                fix=f"{did_you_mean(self.monitor, allowed)}allowed: {', '.join(allowed)}",
            )

    def suited(self, labels: Sequence[Label]) -> TrainingOptions:
        """Return the options with the default metrics of an implicit label, if there is one.

        Raises:
            ConfigError: the monitor is logloss, which an implicit label does not have.
        """
        if not any(label.implicit for label in labels):
            return self
        ranking = self.ranking or Ranking((10,), among="items")
        monitor = f"ndcg@{max(ranking.at)}" if self.monitor == "auc" else self.monitor
        if monitor == "logloss":
            raise ConfigError(
                "monitor logloss is not a metric of an implicit label",
                why="the label is 1 in all rows",
                fix=f"use a ranking metric, such as {ranking.names[3]}",
            )
        return replace(self, ranking=ranking, monitor=monitor)

    @property
    def settings(self) -> dict[str, Any]:
        """The options that rules of `satrap.compatibility` name."""
        return {
            "training.clip_norm": self.clip_norm,
            "training.ranking.among": self.ranking and self.ranking.among,
            "dense.precision": self.precision,
            "dense.checkpoint_activations": self.checkpoint_activations,
            "dense.compile": self.compile,
            "dense.microbatches": self.microbatches,
            "TrainingOptions.microbatches": self.microbatches,
        }

    @property
    def directions(self) -> dict[str, bool]:
        """Name of each custom and ranking metric -> whether higher values are better."""
        custom = {metric_name(metric): higher_is_better(metric) for metric in self.metrics}
        return custom | dict.fromkeys(self.ranking.names if self.ranking else (), True)


def higher_is_better(function: Metric) -> bool:
    """Return the attribute `higher_is_better` of a metric, by default True."""
    return getattr(function, "higher_is_better", None) in (None, True)


def metric_name(function: Metric) -> str:
    """Return the name of a metric.

    Raises:
        ConfigError: the metric has no name, or a reserved one.
    """
    name = getattr(function, "__name__", "") or (
        type(function).__name__ if is_metric_object(function) else ""
    )
    if not name.isidentifier() or name in RESERVED:
        raise ConfigError(
            f"{name or repr(function)} cannot be a metric",
            why=f"a metric needs a name that is an identifier and none of {', '.join(RESERVED)}",
            fix="give metrics a named function (labels, predictions) -> number",
        )
    return name


def is_metric_object(metric: object) -> bool:
    """Return whether a metric is a torchmetrics object or class."""
    return all(callable(getattr(metric, name, None)) for name in ("update", "compute", "reset"))
