"""The account of one `fit`: counters and speed; calls the observers."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from satrap.dense import StepResult, Workers
from satrap.dense.compute.fused import HostCopy
from satrap.embedding import BatchLookup
from satrap.errors import ExchangeError, TrainingError
from satrap.exchange import Exchange, ExchangeStatistics, Traffic
from satrap.schema import Label
from satrap.train.progress.event_hours import EventHours
from satrap.train.progress.observer import Observer, Progress, Result
from satrap.train.progress.plateau_control import PlateauControl
from satrap.train.progress.running_metrics import RunningMetrics
from satrap.train.progress.shard_load import ShardLoad, summary
from satrap.train.progress.throughput import Clock, Length
from satrap.train.step.agree import StepInput
from satrap.train.step.loss import predictions
from satrap.train.step.phase_timer import PhaseTimer

REFUSED_LIMIT = 100
"""Rejected steps in a row that end a run: this many are not one bad batch."""

LOSS_DECAY = 0.98
"""The displayed loss is an average over about 1 / (1 - 0.98) = 50 steps."""

STATISTICS_SECONDS = 0.5
"""Seconds between two reads of the store's counters, which a separate thread waits for."""

Rows = npt.NDArray[np.float32]


class FitStats:
    """Counts the events of one `fit` of `epochs` epochs and calls the observers."""

    def __init__(
        self,
        labels: Sequence[Label] = (),
        epochs: int = 0,
        observers: Sequence[Observer] = (),
        workers: Workers | None = None,
    ) -> None:
        self.progress = Progress()
        self.workers = workers or Workers()
        self.observers = observers
        self.updates = 0
        self.staleness: Counter[int] = Counter()
        self.stages = PhaseTimer()
        self.progress.stage_seconds = self.stages.seconds
        self._load = ShardLoad()
        self.history: list[Mapping[str, float]] = []
        self.best: Mapping[str, float] = {}
        self.stopped = "epochs"
        self._ratios = self._looked_at = 0.0
        self._own_samples = 0
        self._refused_in_row = 0
        self._labels, self._window, self._hours = labels, RunningMetrics(labels), EventHours(labels)
        self._clock = Clock()
        self._length = Length(epochs)
        self.pauses: list[float] = []
        self._exchange: Exchange | None = None
        self._asker = ThreadPoolExecutor(1, "satrap-statistics")
        self._asked: Future[ExchangeStatistics] | None = None

    @property
    def steps(self) -> int:
        """Training steps done."""
        return self.progress.step

    @contextmanager
    def watching(self, exchange: Exchange, data: Any) -> Iterator[None]:
        """Call the observers' `started`; read the store's counters until the context ends."""
        self._exchange = exchange
        self._length.of(data, self.workers)
        self.progress.total_samples = self._length.total
        for observer in self.observers:
            observer.started(self.progress)
        try:
            yield
        finally:
            self._asker.shutdown(wait=False)

    def begin_epoch(self, epoch: int) -> None:
        """Start the clock."""
        self.progress.epoch = epoch
        self._clock.start()

    def end_epoch(self) -> None:
        """Stop the clock."""
        self._clock.stop()
        self._length.epoch_ended(self.progress)
        self._look_at_store()

    def wait(self, future: Future[list[Rows]]) -> list[Rows]:
        """Return the rows of a lookup, and count the seconds spent waiting for them."""
        with self.stages.timed("lookup"):
            rows = future.result()
        self.progress.lookup_wait_seconds = self.stages.seconds["lookup"]
        return rows

    def predicted(self, logits: Tensor | None) -> HostCopy | None:
        """Start to copy a step's predictions to the host; they do not wait for the steps of network and rows.

        Args:
            logits: float32[size, outputs]; None without a batch.
        """
        return None if logits is None else HostCopy(predictions(logits, self._labels))

    def after_step(
        self, step: StepInput, predicted: HostCopy | None, stepped: StepResult, missed: int
    ) -> None:
        """Count one step; `TrainingError` after too many rejected steps.

        Args:
            step: this worker's part.
            predicted: from `predicted`.
            stepped: the result of the step.
            missed: number of own updates that its lookup did not see.
        """
        progress = self.progress
        progress.step += 1
        progress.samples += step.samples
        if not step.idle:
            progress.staleness = missed
            self.staleness[missed] += 1
            if not math.isnan(ratio := step.ticket.distinct_ratio):  # unknown if rows are on a device
                progress.distinct_ratio = ratio
                self._ratios += ratio
            self._own_samples += step.ticket.batch.size
        if stepped.accepted:
            self._accept(step.ticket, predicted, stepped.loss)
        elif not stepped.rescaled:
            self._refuse()
        progress.samples_per_second = progress.samples / self._clock.seconds
        if progress.step == 1 or self._clock.seconds - self._looked_at >= STATISTICS_SECONDS:
            self._look_at_store(wait=False)
            if not step.idle:
                self._length.look(step.ticket.batch, progress)
        if self._length.total is not None:
            progress.total_samples = self._length.total
            remaining = max(self._length.total - progress.samples, 0)
            progress.eta_seconds = remaining / progress.samples_per_second
        for observer in self.observers:
            observer.step(progress)

    def _accept(self, ticket: BatchLookup, copied: HostCopy | None, loss: float) -> None:
        progress = self.progress
        self.updates += 1
        self._refused_in_row = 0
        first = progress.loss != progress.loss
        progress.loss = loss if first else LOSS_DECAY * progress.loss + (1 - LOSS_DECAY) * loss
        if copied is not None:
            predicted = copied.wait().numpy()
            for name, value in self._window.add(ticket.batch, predicted).items():
                setattr(progress, name, value)
            if ticket.batch.times is not None:
                self._report_hours(self._hours.add(ticket.batch, predicted))
                progress.event_time = self._hours.latest

    def _report_hours(self, ended: Iterable[tuple[str, Mapping[str, float]]]) -> None:
        for hour, metrics in ended:
            for observer in self.observers:
                observer.event_hour(hour, metrics, self.progress)

    def _refuse(self) -> None:
        self.progress.refused += 1
        self._refused_in_row += 1
        if self._refused_in_row >= REFUSED_LIMIT:
            raise TrainingError(
                f"{REFUSED_LIMIT} steps in a row had a loss or gradient that is not finite",
                where=f"step {self.progress.step}",
                why="the model has diverged or the data has invalid values; these steps have changed no row",
                fix="lower the learning rates, set training.clip_norm, or check the numeric features",
            )

    def _look_at_store(self, *, wait: bool = True) -> None:
        """Read the store's counters; without `wait`, use the last ones and request new ones."""
        if self._exchange is None or self.workers.rank > 0:
            return
        self._looked_at, telemetry = self._clock.seconds, self._exchange.telemetry
        if wait:
            self._asked = None  # its response would be older
            self._note(telemetry.statistics(), telemetry.traffic())
        elif self._asked is None or self._asked.done():
            if self._asked is not None:
                # A shard that is leaving does not respond. Any other error will reach the next step as well.
                with suppress(ExchangeError):
                    self._note(self._asked.result(), telemetry.traffic())
            self._asked = self._asker.submit(telemetry.statistics)

    def _note(self, statistics: ExchangeStatistics, traffic: Traffic) -> None:
        self.progress.rows, self.progress.memory_bytes = statistics.rows, statistics.bytes
        self._load.look(statistics.shards, traffic, self.progress, self._own_samples)

    def evaluated(self, metrics: Mapping[str, float]) -> None:
        """Record one evaluation."""
        self.history.append(metrics)
        for observer in self.observers:
            observer.evaluated(metrics, self.progress)

    def done(self, steps: int | None, control: PlateauControl) -> bool:
        """Return True when the steps are used up or patience is exhausted."""
        if steps is not None and self.steps >= steps:
            self.stopped = "steps"
        elif control.exhausted:
            self.stopped = "patience"
        return self.stopped != "epochs"

    def state(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        """Return the account as (plain data, arrays), for a snapshot."""
        plain = {
            "progress": asdict(self.progress),
            "updates": self.updates,
            "staleness": sorted(self.staleness.items()),
            "history": [dict(metrics) for metrics in self.history],
            "best": dict(self.best),
            "refused_in_row": self._refused_in_row,
            "ratios": self._ratios,
            "own_samples": self._own_samples,
            "seconds": self._clock.seconds,
            "before": self._length.before,
        }
        parts = {"window": self._window.state(), "hours": self._hours.state()}
        return plain, {f"{name}.{key}": a for name, arrays in parts.items() for key, a in arrays.items()}

    def restore(self, plain: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Continue the account of a snapshot, as returned by `state`."""
        self.progress = Progress.of(plain["progress"])
        self.stages.seconds.update(self.progress.stage_seconds)
        self.progress.stage_seconds = self.stages.seconds
        self.updates, self.staleness = plain["updates"], Counter(dict(plain["staleness"]))
        self.history, self.best = list(plain["history"]), plain["best"]
        self._refused_in_row = plain["refused_in_row"]
        self._ratios, self._own_samples = plain["ratios"], plain["own_samples"]
        self._clock = Clock(plain["seconds"])
        self._length.before = plain["before"]
        for name, part in (("window", self._window), ("hours", self._hours)):
            values = {k.removeprefix(f"{name}."): a for k, a in arrays.items() if k.startswith(f"{name}.")}
            part.restore(values)

    def _traffic(self) -> dict[str, Any]:
        if self._exchange is None:
            return {}
        figures = {
            "distinct_ratio": self._ratios / max(sum(self.staleness.values()), 1),
            "lookup_wait_seconds": self.progress.lookup_wait_seconds,
            "stage_seconds": dict(self.stages.seconds),
            "snapshots": len(self.pauses),
            "snapshot_pause_ms": 1000 * max(self.pauses, default=0.0),
            **summary(self._exchange.telemetry.traffic(), self._own_samples),
            "rounding_dense": self.workers.data.rounding,
        }
        others = [json.loads(reply) for reply in self.workers.gather(json.dumps(figures).encode())]
        return {**figures, **self._load.total(), **({"workers": others} if len(others) > 1 else {})}

    def _check_learnt(self) -> None:
        """Raise `TrainingError` if there were steps, but all steps on all workers were rejected."""
        [taken, learnt] = self.workers.count([self.steps, self.updates])
        if taken and not learnt and self.stopped != "stopped":
            raise TrainingError(
                f"nothing was learnt: all {self.steps:,} steps were refused",
                where="the loss or a gradient of each step was not finite",
                why="the weights are still the initial ones, so no model is saved",
                fix="look for huge values in the numeric features, lower the learning rates, set clip_norm",
            )

    def finish(self) -> Result:
        """Close the account and notify the observers; `TrainingError` if every step was rejected."""
        self.workers.meet("end of the run")  # a worker may have removed or written snapshots in between
        self._check_learnt()
        if self.stopped != "stopped":  # otherwise the open hours continue when the run is resumed
            self._report_hours(self._hours.end())
        self._look_at_store()
        result = Result(
            metrics=self.best,
            history=tuple(self.history),
            steps=self.steps,
            samples=self.progress.samples,
            seconds=self._clock.seconds,
            samples_per_second=self.progress.samples / self._clock.seconds,
            refused=self.progress.refused,
            stopped=self.stopped,
            staleness=dict(self.staleness),
            traffic=self._traffic(),
        )
        for observer in self.observers:
            observer.finished(result)
        return result
