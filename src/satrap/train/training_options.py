"""Decay of learning rates, limits of a step, and early stopping."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from satrap.dense.compute.precision import check_precision
from satrap.errors import ConfigError, did_you_mean
from satrap.metrics.own import Metric, higher_is_better, metric_name
from satrap.optim import Constant, Schedule
from satrap.runtime.arguments import checked

MONITORS = ("auc", "logloss")


@checked()
@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """Options for a trainer's steps.

    Args:
        lr_schedule: factor on all learning rates by the number of completed steps, default 1.
        clip_norm: limit of the global gradient norm over parameters and rows; None: no clipping. For its
            meaning with several workers see `satrap.dense.DataParallelBackend`.
        plateau: factor on all learning rates after each evaluation without improvement; None: never.
        patience: evaluations without improvement that end training with the best weights restored; None:
            never.
        monitor: metric of the validation rows that decides both: "auc" (default), "logloss" or one of
            `metrics`. Unless all labels are binary, the loss decides instead of "auc" and "logloss".
        precision: number format of the network's arithmetic, forward and backward: "float32" (default),
            "bfloat16" or "float16", by `torch.autocast`. Weights, gradients, optimizers, pooling, loss and
            metrics are always float32. The trained model scores in the same format. With "float16" the loss
            is scaled, see `satrap.dense.LossScale`.
        microbatches: number of microbatches per batch, whose forward and backward passes run one after
            another, default 1. Their gradients make one step, equal to the step of the whole batch up to
            rounding; only the activations of one microbatch are in memory at a time. A custom loss must be a
            mean over the samples.
        staleness_warmup: steps over which the staleness of "hybrid" and "async" grows from 0 to its value;
            default 20 for each, so that rows at the start of training miss few updates. 0: at once.
        checkpoint_activations: blocks of the network recompute their forward pass in the backward pass,
            default False; see `satrap.dense.memory.activation_checkpoint`, and for a pipeline
            `satrap.dense.parallel.pipeline_runner.Stage`.
        compile: blocks of the network are compiled when they first run, default False; see
            `satrap.dense.compute.compiled`. Not with `checkpoint_activations`, nor with a mesh that shards
            the network. A trained model scores without it.
        metrics: custom metrics, see `satrap.metrics.OwnMetrics`. As the monitor, lower values of a metric are
            better if it has an attribute `higher_is_better` that is False.

    Raises:
        ConfigError: an unknown precision or monitor, microbatches below 1, or `compile` with
            `checkpoint_activations`.
    """

    lr_schedule: Schedule = field(default_factory=Constant)
    clip_norm: float | None = None
    plateau: float | None = None
    patience: int | None = None
    monitor: str = "auc"
    precision: str = "float32"
    microbatches: int = 1
    staleness_warmup: int | None = None
    checkpoint_activations: bool = False
    compile: bool = False
    metrics: tuple[Metric, ...] = ()

    def __post_init__(self) -> None:
        check_precision(self.precision)
        if self.microbatches < 1:
            raise ConfigError(f"microbatches must be >= 1, got {self.microbatches}")
        if self.compile and self.checkpoint_activations:
            raise ConfigError(
                "compile cannot be combined with checkpoint_activations",
                why="PyTorch itself chooses which activations a compiled block keeps for its backward pass",
                fix="remove one of the two",
            )
        allowed = [*MONITORS, *self._directions()]
        if self.monitor not in allowed:
            raise ConfigError(
                f"monitor {self.monitor!r} is not a metric of the validation rows",
                fix=f"{did_you_mean(self.monitor, allowed)}allowed: {', '.join(allowed)}",
            )

    def _directions(self) -> dict[str, bool]:
        return {metric_name(metric): higher_is_better(metric) for metric in self.metrics}

    def control(self) -> PlateauControl:
        """Return the control that follows the validation metric of a run."""
        return PlateauControl(self.plateau, self.patience, monitor=self.monitor, own=self._directions())


@dataclass(slots=True)
class PlateauControl:
    """Follows one validation metric.

    Every evaluation without improvement multiplies the learning rates by `factor`; `patience` of them in a
    row end training. Dropping the rates by ten on a plateau is worth about +0.003 AUC in the published CTR
    recipes.

    Args:
        factor: factor on the rates, in (0, 1); None: never.
        patience: evaluations without improvement that end training; None: never.
        min_delta: an improvement must exceed this.
        monitor: the metric, see `TrainingOptions`, default "auc".
        own: the user's own metrics, and whether higher values of each are better.
    """

    factor: float | None = None
    patience: int | None = None
    min_delta: float = 1e-6
    best: float = -math.inf
    bad: int = 0
    lr_scale: float = 1.0
    monitor: str = "auc"
    own: Mapping[str, bool] = field(default_factory=dict)

    def metric(self, criterion: str) -> tuple[str, bool]:
        """Return (monitored metric, whether higher values are better); for `criterion` see there."""
        if self.monitor in self.own:
            return self.monitor, self.own[self.monitor]
        name = self.monitor if criterion == "auc" else criterion
        return name, name == "auc"

    def value(self, metrics: Mapping[str, float], criterion: str) -> float:
        """Return the monitored metric, negated if lower is better; for `criterion` see there."""
        name, higher = self.metric(criterion)
        return metrics[name] if higher else -metrics[name]

    def improved(self, value: float) -> bool:
        """Record one evaluation; return True if it is the best so far."""
        if value > self.best + self.min_delta:
            self.best, self.bad = value, 0
            return True
        self.bad += 1
        if self.factor is not None:
            self.lr_scale *= self.factor
        return False

    def forget_best(self) -> None:
        """Reset the best value, because its weights are lost; the next evaluation becomes the best."""
        self.best = -math.inf

    @property
    def exhausted(self) -> bool:
        """Whether patience is exhausted."""
        return self.patience is not None and self.bad >= self.patience
