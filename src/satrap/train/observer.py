"""How a run is seen from outside: `Progress` per step, metrics per evaluation, one `Result`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class Progress:
    """Where a run stands after a step.

    Args:
        step: training steps done, over all epochs.
        epoch: current epoch, from 0.
        samples: samples trained, over all epochs.
        total_samples: samples of all epochs, or None when unknown.
        samples_per_second: training speed so far, validation excluded.
        loss: mean loss of the last steps (exponential average over about 50).
        auc: AUC of the training samples of the current window, before they were learnt from; NaN at first.
        rows: rows in the store.
        staleness: updates of its own the last lookup did not see.
        memory_bytes: bytes of the store.
        refused: steps refused because loss or gradients were not finite.
        eta_seconds: seconds to the end at this speed, or None when unknown.
    """

    step: int = 0
    epoch: int = 0
    samples: int = 0
    total_samples: int | None = None
    samples_per_second: float = 0.0
    loss: float = float("nan")
    auc: float = float("nan")
    rows: int = 0
    staleness: int = 0
    memory_bytes: int = 0
    refused: int = 0
    eta_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """What a finished `fit` returns.

    Args:
        metrics: validation metrics of the kept weights; empty without validation.
        history: validation metrics of every evaluation, in order.
        steps: training steps done.
        samples: samples trained.
        seconds: wall time of training, validation excluded.
        samples_per_second: samples / seconds.
        refused: steps refused because loss or gradients were not finite.
        stopped: why it ended: "epochs", "steps" or "patience".
        staleness: how many lookups missed how many own updates, {missed: lookups}.
    """

    metrics: Mapping[str, float]
    history: tuple[Mapping[str, float], ...]
    steps: int
    samples: int
    seconds: float
    samples_per_second: float
    refused: int
    stopped: str
    staleness: Mapping[int, int] = field(default_factory=dict)


class Observer:
    """Base of everything that watches a run; override what you need.

    Calls come from the training thread: return quickly, and do not change the model.
    """

    def started(self, progress: Progress) -> None:
        """Training begins."""

    def step(self, progress: Progress) -> None:
        """Follow a training step; `progress` is reused, copy what you keep."""

    def evaluated(self, metrics: Mapping[str, float], progress: Progress) -> None:
        """Follow a validation pass."""

    def finished(self, result: Result) -> None:
        """Training ended normally."""
