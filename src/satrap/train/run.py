"""The account of one `fit`: counters, speed, the best weights, and telling the observers."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from satrap.checkpoint import read_checkpoint
from satrap.embedding import Ticket
from satrap.errors import TrainingError
from satrap.exchange import Exchange
from satrap.train.control import PlateauControl
from satrap.train.observer import Observer, Progress, Result
from satrap.train.pace import Clock, Length
from satrap.train.window import AUCWindow

if TYPE_CHECKING:
    from satrap.train.trainer import Trainer

REFUSED_LIMIT = 100
"""Refused steps in a row that end a run: by then it is not one bad batch."""

LOSS_DECAY = 0.98
"""The loss shown is an average over about 1 / (1 - 0.98) = 50 steps."""

STATISTICS_EVERY = 20
"""Steps between two looks at the store's counters."""


class Run:
    """Counts what happens in one `fit` and tells the observers.

    Args:
        labels: names of the labels.
        epochs: planned passes.
        observers: who is told.
    """

    def __init__(self, labels: tuple[str, ...], epochs: int = 0, observers: Sequence[Observer] = ()) -> None:
        self.progress = Progress()
        self.observers = observers
        self.updates = 0
        self.staleness: Counter[int] = Counter()
        self.history: list[Mapping[str, float]] = []
        self.best: Mapping[str, float] = {}
        self.stopped = "epochs"
        self._refused_in_row = 0
        self._window = AUCWindow(labels)
        self._clock = Clock()
        self._length = Length(epochs)
        self._kept: tempfile.TemporaryDirectory[str] | None = None
        self._kept_is_current = False
        self._exchange: Exchange | None = None

    @property
    def steps(self) -> int:
        """Training steps done."""
        return self.progress.step

    @contextmanager
    def watching(self, exchange: Exchange, data: Any) -> Iterator[None]:
        """Tell the observers that the run begins; when the block ends, however, drop what was kept."""
        self._exchange = exchange
        self._length.of(data)
        self.progress.total_samples = self._length.total
        for observer in self.observers:
            observer.started(self.progress)
        try:
            yield
        finally:
            if self._kept is not None:
                self._kept.cleanup()

    def begin_epoch(self, epoch: int) -> None:
        """Start the clock."""
        self.progress.epoch = epoch
        self._clock.start()

    def end_epoch(self) -> None:
        """Stop the clock."""
        self._clock.stop()
        self._length.epoch_ended(self.progress)
        self._look_at_store()

    def after_step(self, ticket: Ticket, logits: Tensor, loss: Tensor, accepted: bool, missed: int) -> None:
        """Count one step.

        Raises:
            TrainingError: too many refused steps in a row.
        """
        progress = self.progress
        progress.step += 1
        progress.samples += ticket.batch.size
        progress.staleness = missed
        self.staleness[missed] += 1
        self._kept_is_current = False
        if accepted:
            self._accept(ticket, logits, loss.item())
        else:
            self._refuse()
        progress.samples_per_second = progress.samples / self._clock.seconds
        if progress.step % STATISTICS_EVERY == 1:
            self._look_at_store()
            self._length.look(ticket.batch, progress)
        if self._length.total is not None:
            progress.total_samples = self._length.total
            left = max(self._length.total - progress.samples, 0)
            progress.eta_seconds = left / progress.samples_per_second
        for observer in self.observers:
            observer.step(progress)

    def _accept(self, ticket: Ticket, logits: Tensor, loss: float) -> None:
        progress = self.progress
        self.updates += 1
        self._refused_in_row = 0
        first = progress.loss != progress.loss
        progress.loss = loss if first else LOSS_DECAY * progress.loss + (1 - LOSS_DECAY) * loss
        progress.auc = self._window.add(ticket.batch, logits)

    def _refuse(self) -> None:
        self.progress.refused += 1
        self._refused_in_row += 1
        if self._refused_in_row >= REFUSED_LIMIT:
            raise TrainingError(
                f"{REFUSED_LIMIT} steps in a row had a loss or gradient that is not finite",
                where=f"step {self.progress.step}",
                why="the model has diverged or the data holds impossible values; no row has been harmed",
                fix="lower the learning rates, set training.clip_norm, or check the numeric features",
            )

    def _look_at_store(self) -> None:
        if self._exchange is not None:
            statistics = self._exchange.statistics()
            self.progress.rows = int(statistics["rows"])
            self.progress.memory_bytes = int(statistics["bytes"])

    def evaluated(self, metrics: Mapping[str, float]) -> None:
        """Record one validation pass."""
        self.history.append(metrics)
        for observer in self.observers:
            observer.evaluated(metrics, self.progress)

    def done(self, steps: int | None, control: PlateauControl) -> bool:
        """Return True when the steps are used up or patience has run out."""
        if steps is not None and self.steps >= steps:
            self.stopped = "steps"
        elif control.exhausted:
            self.stopped = "patience"
        return self.stopped != "epochs"

    def keep_best(self, trainer: Trainer) -> None:
        """Keep the present weights and rows, on disk, as the best."""
        if self._kept is None:
            self._kept = tempfile.TemporaryDirectory(prefix="satrap-best-")
        trainer.save(str(Path(self._kept.name) / "best"))
        self._kept_is_current = True

    def restore_best(self, trainer: Trainer) -> None:
        """Bring back what `keep_best` kept, unless nothing was or the trainer still has it."""
        if self._kept is None or self._kept_is_current:
            return
        scale = trainer.control.lr_scale
        trainer.exchange.clear()  # rows created since then must start anew
        trainer.restore(read_checkpoint(str(Path(self._kept.name) / "best")))
        trainer.control.lr_scale = scale

    def finish(self) -> Result:
        """Close the account and tell the observers."""
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
        )
        for observer in self.observers:
            observer.finished(result)
        return result
