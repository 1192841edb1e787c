"""The interface of observers of a run: `Progress` per step, metrics per evaluation, one `Result`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from satrap.runtime.formatting import html_table, metric_rows, metrics_line


@dataclass(slots=True)
class Progress:
    """The state of a run after a step.

    Args:
        step: training steps done, over all epochs.
        epoch: current epoch, from 0.
        samples: samples trained, over all epochs; of all workers, in async of this one.
        total_samples: samples of all epochs, or None when unknown.
        samples_per_second: training speed so far, validation excluded.
        loss: mean loss of the last steps (exponential average over about 50).
        auc, accuracy, rmse: of the last window of training samples, scored before training on them; NaN at
            first, and if no label has the metric. Means over labels; rmse of a single label only.
        rows: rows in the store.
        staleness: own updates that the last lookup did not see.
        memory_bytes: bytes of the store.
        refused: steps rejected because loss or gradients were not finite.
        eta_seconds: seconds to the end at this speed, or None when unknown.
        lookup_wait_seconds: time this worker has waited for rows so far.
        distinct_ratio: unique ids / ids of the last batch.
        waiting: requests of this worker in flight at the last look: lookups ahead, and updates behind.
        sent_bytes_per_sample, received_bytes_per_sample: of this worker, to and from shard servers.
        batches_ready: batches that the reader held ready after the step.
        others_missed: updates of other workers that a lookup did not see, as measured by the shards; mean
            over the lookups since the last look.
        push_seconds: mean time from issue to acknowledgement of the updates since the last look.
        pushes: updates that were not acknowledged at the last look.
        shard_rows: rows of each shard server; empty without servers, like the next three.
        shard_busy: fraction of its time that each shard server spent executing requests since the last look,
            0..1.
        shard_requests: requests each executed per second since then.
        shard_queued: requests that waited in each at the last look.
        event_time: time of the latest event trained on, seconds since 1970; NaN without a stream that has
            times.
        stage_seconds: seconds of this worker's training thread by stage so far, see
            `satrap.train.step.phase_timer`.
    """

    step: int = 0
    epoch: int = 0
    samples: int = 0
    total_samples: int | None = None
    samples_per_second: float = 0.0
    loss: float = float("nan")
    auc: float = float("nan")
    accuracy: float = float("nan")
    rmse: float = float("nan")
    rows: int = 0
    staleness: int = 0
    memory_bytes: int = 0
    refused: int = 0
    eta_seconds: float | None = None
    lookup_wait_seconds: float = 0.0
    distinct_ratio: float = float("nan")
    waiting: int = 0
    sent_bytes_per_sample: float = 0.0
    received_bytes_per_sample: float = 0.0
    batches_ready: int = 0
    others_missed: float = 0.0
    push_seconds: float = 0.0
    pushes: int = 0
    shard_rows: tuple[int, ...] = ()
    shard_busy: tuple[float, ...] = ()
    shard_requests: tuple[float, ...] = ()
    shard_queued: tuple[int, ...] = ()
    event_time: float = float("nan")
    stage_seconds: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Progress:
        """Build it from `dataclasses.asdict` data; accepts lists for tuples, as in JSON."""
        plain: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        return cls(**plain)


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a finished `fit`.

    Args:
        metrics: validation metrics of the kept weights; empty without validation.
        history: validation metrics of every evaluation, in order.
        steps: training steps done.
        samples: samples trained, by all workers.
        seconds: wall time of training, validation excluded.
        samples_per_second: samples / seconds.
        refused: steps rejected because loss or gradients were not finite.
        stopped: the reason for the end: "epochs", "steps" or "patience".
        staleness: number of lookups by the number of own updates they missed, {missed: lookups}, in the order
            issued.
        traffic: figures of the traffic between this worker and the rows, see `docs/metrics.md`.
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
    traffic: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return (
            f"Result(steps={self.steps}, samples={self.samples}, seconds={self.seconds:.1f}, "
            f"stopped={self.stopped!r}, {metrics_line(self.metrics) or 'no validation'})"
        )

    def _repr_html_(self) -> str:
        facts = [("steps", f"{self.steps:,}"), ("samples", f"{self.samples:,}"), ("stopped", self.stopped)]
        return html_table(f"Result: {self.seconds:.1f} s", [*facts, *metric_rows(self.metrics)])


class Observer:
    """Base class of everything that observes a run; override the methods you need.

    Calls come from the training thread: return quickly, and do not change the model.
    """

    def started(self, progress: Progress) -> None:
        """Training begins."""

    def step(self, progress: Progress) -> None:
        """A training step ended; `progress` is reused, so copy what you keep."""

    def evaluated(self, metrics: Mapping[str, float], progress: Progress) -> None:
        """An evaluation on the validation data ended."""

    def event_hour(self, hour: str, metrics: Mapping[str, float], progress: Progress) -> None:
        """An hour of events ended, such as 2026-11-28T13:00Z; each was scored before it was trained on."""

    def finished(self, result: Result) -> None:
        """Training ended normally."""
