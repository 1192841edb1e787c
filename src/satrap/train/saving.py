"""Snapshots of a run under way, and going on from one as if nothing had happened."""

from __future__ import annotations

import itertools
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from satrap.batch import Batch
from satrap.checkpoint import Background, Checkpoint, Series
from satrap.errors import CheckpointError, ConfigError, SatrapError
from satrap.exchange import LocalExchange, Request
from satrap.train.turns import Turn

if TYPE_CHECKING:
    from satrap.train.trainer import Data, Pending, Trainer

Rows = npt.NDArray[np.float32]

CHANGING = ("steps", "lr_scale", "run", "best")
"""Settings of a snapshot that a trainer need not agree with."""


class StopRequested(KeyboardInterrupt):
    """`Trainer.request_stop` was called; the state is consistent."""


def _warn(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=3)


@dataclass(frozen=True, slots=True)
class Checkpointing:
    """Where and how often `Trainer.fit` writes snapshots to go on from.

    ```python
    plan = satrap.train.Checkpointing("runs/x/checkpoints", every_steps=1000)
    trainer.fit(data, epochs=2, checkpoint=plan)                  # killed at some point
    same_trainer.fit(data, epochs=2, checkpoint=plan, resume=True)
    ```

    The second call goes on from the newest snapshot. In one process the result is that of a run that was
    never killed, to the bit. A save that fails does not end training: the older snapshots stay, `notice` is
    told, and the next save is tried as usual.

    Args:
        url: folder or fsspec URL.
        every_steps: steps between two snapshots; None: only when `Trainer.request_stop` is called.
        keep: how many stay, default 2.
        notice: told about failed saves; default a RuntimeWarning.
    """

    url: str
    every_steps: int | None = None
    keep: int = 2
    notice: Callable[[str], None] = _warn

    def __post_init__(self) -> None:
        for name in ("every_steps", "keep"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"checkpoint: {name} must be >= 1, got {value}")


class Saver:
    """Knows where one `fit` stands in its data, and saves that; made by `Trainer.fit`.

    Args:
        trainer: whose state it is.
        plan: where snapshots go; None: nowhere.

    Raises:
        ConfigError: the exchange or the workers cannot be saved yet.

    Attributes:
        epoch: the pass that is under way or comes next.
        ahead: lookups in flight, which the schedule keeps here.
    """

    def __init__(self, trainer: Trainer, plan: Checkpointing | None) -> None:
        self._trainer, self._plan = trainer, plan
        self.series = None if plan is None else Series(plan.url, keep=plan.keep)
        self.epoch = 0
        self._position: Any = None
        self._done = 0
        self.ahead: deque[tuple[Turn, Pending | None]] = deque()
        self._replay: deque[tuple[int, list[tuple[npt.NDArray[np.uint64], Rows]]]] = deque()
        self._writer = Background()
        self._due = False
        if plan is not None and not isinstance(trainer.exchange, LocalExchange):
            raise ConfigError(
                "snapshots during training are not supported with shard servers in this version",
                fix="use cluster.exchange local, or remove checkpoint",
            )

    def batches(self, data: Data) -> Iterator[Batch]:
        """Yield the batches of the current pass that are not trained yet.

        Raises:
            StopRequested: before the first one, if a stop was asked for.
        """
        self._mind_stop()
        if self._done and self._position is None:  # the data does not say where it stands: count
            return itertools.islice(data.batches(self.epoch), self._done, None)
        return data.batches(self.epoch, self._position) if self._done else data.batches(self.epoch)

    def stoppable(self, data: Data) -> Data:
        """Return the same data, which ends with `StopRequested` when a stop is asked for."""
        return _Stoppable(data, self._mind_stop) if self._plan is not None else data

    def __enter__(self) -> Saver:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        """Save and swallow a `StopRequested`; in any case wait for what is being written."""
        stopped = isinstance(error, StopRequested)
        if stopped:
            self._trainer.run.stopped = "stopped"
            self.save()
        self.finish()
        if error is None and self.series is not None:
            self.series.prune(finished=True)
        return stopped

    def stepped(self, turn: Turn, *, stop: bool) -> None:
        """Take note of a finished step; save if it is time.

        Args:
            turn: what was done.
            stop: whether this step is to be the last one.

        Raises:
            StopRequested: it is, and a snapshot will be saved.
            KeyboardInterrupt: it is, and there is nowhere to save.
        """
        if turn.ticket is not None:
            self._position, self._done = turn.ticket.batch.position, self._done + 1
        if self._plan is None:
            if stop:
                raise KeyboardInterrupt
            return
        if stop:
            raise StopRequested
        if error := self._writer.failure():
            self._report(error)
        every = self._plan.every_steps
        if every is not None and self._trainer.run.steps % every == 0:
            self._due = True
        if self._due and not self._writer.busy:  # a late one waits: training does not
            self._due = False
            self._start()

    def epoch_ended(self) -> None:
        """Take note that a pass and its evaluation are over."""
        self.epoch, self._position, self._done = self.epoch + 1, None, 0

    def _mind_stop(self) -> None:
        if self._plan is not None and self._trainer.stopping:
            raise StopRequested

    def replayed(self, requests: Sequence[Request]) -> tuple[Future[list[Rows]], int] | None:
        """Return the lookup that was in flight when the snapshot was taken, with the updates it had seen.

        Raises:
            CheckpointError: the data is not what it was.
        """
        if not self._replay:
            return None
        seen, answers = self._replay.popleft()
        same = len(answers) == len(requests) and all(
            np.array_equal(ids, request.ids) for (ids, _), request in zip(answers, requests, strict=True)
        )
        if not same:
            raise CheckpointError(
                "the data is not what it was when the snapshot was taken",
                where=f"step {self._trainer.run.steps + 1}",
                why="going on would not give the result of an undisturbed run",
                fix="bring the old data back, or start anew",
            )
        future: Future[list[Rows]] = Future()
        future.set_result([rows for _, rows in answers])
        return future, seen

    def _start(self) -> None:
        """Take the cut, and write it in the background."""
        assert self.series is not None
        series, step, cut = self.series, self._trainer.run.steps, self._cut()
        self._writer.start(lambda: series.write(step, cut))

    def save(self) -> None:
        """Write a snapshot now.

        Raises:
            CheckpointError: it cannot be written.
        """
        self._writer.wait()
        assert self.series is not None
        self.series.write(self._trainer.run.steps, self._cut())

    def finish(self) -> None:
        """Wait until everything is written, and report what failed."""
        self._writer.wait()
        if error := self._writer.failure():
            self._report(error)

    def _report(self, error: SatrapError) -> None:
        assert self._plan is not None
        self._plan.notice(f"warning: {error}")

    def _cut(self) -> Checkpoint:
        """Return the present state, of which nothing but the rows can change any more."""
        trainer = self._trainer
        exchange = trainer.exchange
        assert isinstance(exchange, LocalExchange)
        checkpoint = trainer.checkpoint()
        extra: dict[str, Tensor] = {"random.cpu": torch.get_rng_state()}
        if trainer.device.type == "cuda":
            extra["random.cuda"] = torch.cuda.get_rng_state(trainer.device)
        run, arrays = trainer.run.state()
        arrays = {**{f"run.{k}": v for k, v in arrays.items()}, **self._in_flight()}
        arrays |= {f"store.{k}": v for k, v in exchange.state().items()}
        extra |= {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
        checkpoint.settings |= {
            "run": {
                **run,
                "epoch": self.epoch,
                "position": self._position,
                "done": self._done,
                "in_flight": [None if p is None else p.updates_seen for _, p in self.ahead],
                "control": [trainer.control.best, trainer.control.bad],
            }
        }
        if best := trainer.run.best_name:
            checkpoint.settings["best"] = best
        return Checkpoint(
            checkpoint.settings,
            _cloned(checkpoint.model),
            _cloned(checkpoint.optimizer),
            checkpoint.chunks,
            extra,
        )

    def _in_flight(self) -> dict[str, npt.NDArray[Any]]:
        arrays: dict[str, npt.NDArray[Any]] = {}
        for number, (_, pending) in enumerate(self.ahead):
            if pending is not None:
                for i, (request, rows) in enumerate(
                    zip(pending.requests, pending.future.result(), strict=True)
                ):
                    arrays[f"ahead.{number}.{i}.ids"] = request.ids
                    arrays[f"ahead.{number}.{i}.rows"] = rows
        return arrays

    def resume(self) -> int:
        """Bring the trainer to the state of the newest snapshot; return its step.

        Raises:
            ConfigError: there is none, or it is of another model or other settings.
            CheckpointError: it is damaged.
        """
        trainer, series = self._trainer, self.series
        exchange = trainer.exchange
        assert isinstance(exchange, LocalExchange)
        if series is None or series.latest() is None:
            raise ConfigError(
                "there is nothing to resume",
                where="no checkpoint was given" if series is None else f"no snapshot in {series.url}",
                why="a fresh start would not be the run that was asked for",
                fix="train without resume, or name the place of its snapshots",
            )
        step, checkpoint = series.read()
        _check_same(checkpoint.settings, trainer.checkpoint().settings, series.place(step))
        trainer.restore(checkpoint)
        run, extra = checkpoint.settings["run"], checkpoint.extra
        trainer.control.best, trainer.control.bad = run["control"]
        best = checkpoint.settings.get("best")
        trainer.run.restore(run, _part(extra, "run."), f"{series.url}/{best}" if best else None)
        exchange.restore_state(_part(extra, "store."))
        self.epoch, self._position, self._done = run["epoch"], run["position"], run["done"]
        for number, seen in enumerate(run["in_flight"]):
            found = _part(extra, f"ahead.{number}.")
            answers = [(found[f"{i}.ids"], found[f"{i}.rows"]) for i in range(len(found) // 2)]
            self._replay.append((seen, answers))
        torch.set_rng_state(extra["random.cpu"])
        if "random.cuda" in extra and trainer.device.type == "cuda":
            torch.cuda.set_rng_state(extra["random.cuda"], trainer.device)
        return step


@dataclass(frozen=True, slots=True)
class _Stoppable:
    """Data whose reading ends when a stop is asked for."""

    data: Data
    check: Callable[[], None]

    def batches(self, epoch: int = 0, position: Any = None) -> Iterator[Batch]:
        """Iterate as the data does."""
        for batch in self.data.batches(epoch, position):
            self.check()
            yield batch


def _part(extra: Mapping[str, Tensor], prefix: str) -> dict[str, npt.NDArray[Any]]:
    return {k.removeprefix(prefix): v.numpy() for k, v in extra.items() if k.startswith(prefix)}


def _cloned(value: Any) -> Any:
    """Return a nested structure with tensors of its own."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, Mapping):
        return {key: _cloned(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_cloned(inner) for inner in value)
    return value


def _check_same(saved: Mapping[str, Any], own: Mapping[str, Any], where: str) -> None:
    for key in own.keys() - set(CHANGING):
        if _plain(own[key]) != _plain(saved.get(key)):
            raise ConfigError(
                f"the snapshot was taken with another {key.replace('_', ' ')}",
                where=where,
                why="going on would not give the result of one run",
                fix=f"use {str(saved.get(key))[:120]}, or start anew",
            )


def _plain(value: Any) -> Any:
    """Return plain data as JSON gives it back."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value
