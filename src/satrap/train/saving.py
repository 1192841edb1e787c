"""Snapshots of a run under way, and going on from one as if nothing had happened."""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from satrap.batch import Batch
from satrap.checkpoint import Background, Checkpoint, Series
from satrap.checkpoint.manifest import understood
from satrap.embedding.open import distinct_requests, recall, replay
from satrap.errors import CheckpointError, ConfigError, SatrapError
from satrap.exchange import Cut, Request
from satrap.exchange.states import COUNTS
from satrap.train.merge import pack_worker, shared_with_extras, unpack_worker
from satrap.train.reading import Reading
from satrap.train.turns import Turn

if TYPE_CHECKING:
    from satrap.train.trainer import Data, Pending, Trainer

Rows = npt.NDArray[np.float32]

CALL_SECONDS = 0.02
"""Between two looks, in `async`, at whether another worker calls."""

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

    The second call goes on from the newest snapshot. In one process, and in `sync` with several workers,
    the result is that of a run that was never killed, to the bit. A save that fails does not end training:
    the older snapshots stay, `notice` is told, and the next save is tried as usual.

    Args:
        url: folder or fsspec URL.
        every_steps: steps between two snapshots; None: only when `Trainer.request_stop` is called.
        keep: how many stay, default 2.
        notice: told about failed saves; default a RuntimeWarning.
        delta_every_steps: steps between two deltas: snapshots that hold only what changed since the one
            before. One of `every_steps` is full; after `resume` they go on from the snapshot that was read.
            Default: none.
    """

    url: str
    every_steps: int | None = None
    keep: int = 2
    notice: Callable[[str], None] = _warn
    delta_every_steps: int | None = None

    def __post_init__(self) -> None:
        for name in ("every_steps", "keep", "delta_every_steps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"checkpoint: {name} must be >= 1, got {value}")


class Saver:
    """Knows where one `fit` stands in its data, and saves that; made by `Trainer.fit`.

    With several workers all call the same methods, each for itself: they agree on when a snapshot is taken,
    wait for each other at the cut, and rank 0 has it written.

    Args:
        trainer: whose state it is.
        plan: where snapshots go; None: nowhere.

    Attributes:
        epoch: the pass that is under way or comes next.
        amid_pass: whether a resumed run has yet to end, and evaluate, the pass that was under way.
        ahead: lookups in flight, which the schedule keeps here.
        pauses: seconds that training waited for each cut.
    """

    def __init__(self, trainer: Trainer, plan: Checkpointing | None) -> None:
        self._trainer, self._plan, self._workers = trainer, plan, trainer.workers
        self.series = None if plan is None else Series(plan.url, keep=plan.keep)
        self.epoch, self.amid_pass = 0, False
        self.reading = Reading(self._workers.rank, self._workers.world)
        self.ahead: deque[tuple[Turn, Pending | None]] = deque()
        self.pauses: list[float] = []
        self._replay: deque[tuple[int, list[_Answer]]] = deque()
        self._writer = Background()
        self._due = self._full = False
        self._apart = trainer.mode == "async" and self._workers.world > 1
        self._called_at = 0.0

    def batches(self, data: Data) -> Iterator[Batch]:
        """Yield the batches of the current pass that are not trained yet.

        Raises:
            StopRequested: before the first one, if a stop was asked for.
        """
        if self._plan is not None and self._any(self._trainer.stopping):
            raise StopRequested
        return self.reading.batches(data, self.epoch)

    def stoppable(self, data: Data) -> Data:
        """Return the same data for an evaluation; it ends early when a stop is asked for, see `evaluated`."""
        return _Stoppable(data, lambda: self._trainer.stopping) if self._plan else data

    def evaluated(self) -> None:
        """Take note that the samples of an evaluation are read: of several workers, by all of them.

        Raises:
            StopRequested: a stop was asked for, so that they may not be all.
        """
        if self._plan is None:
            return
        self._workers.meet("end of the evaluation")
        if self._any(self._trainer.stopping):
            raise StopRequested

    def __enter__(self) -> Saver:
        self._trainer.fitting = True
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        """Save and swallow a `StopRequested`; in any case wait for what is being written."""
        self._trainer.fitting = False
        stopped = isinstance(error, StopRequested)
        if stopped:
            self._trainer.run.stopped = "stopped"
            self.save()
        self.finish()
        if error is None and self.series is not None and self._workers.rank == 0:
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
            self.reading.trained(turn.ticket.batch)
        if self._plan is None:
            if stop:
                raise KeyboardInterrupt
            return
        if error := self._writer.failure():
            self._report(error)
        self._due |= self._is_time(self._plan.delta_every_steps)
        if self._is_time(self._plan.every_steps):
            self._due = self._full = True
        if self._apart:
            self._stepped_apart(stop)
        elif stop:
            raise StopRequested
        elif self._due and not self._any(self._writer.busy):  # a late one waits: training does not
            self._start()

    def _is_time(self, every: int | None) -> bool:
        return every is not None and self._trainer.run.steps % every == 0

    def _any(self, flag: bool) -> bool:
        """Return whether it is true of any worker; they must be in step."""
        if self._workers.world == 1:
            return flag
        flags = torch.tensor([float(flag)])
        self._workers.sum(flags)
        return bool(flags[0] > 0)

    def _stepped_apart(self, stop: bool) -> None:
        """`async`: rank 0 calls the others to a cut, and who is asked to stop calls all."""
        due = self._due and self._workers.rank == 0 and not self._writer.busy
        if stop or due or self._is_called():
            self._council(stop)

    def _is_called(self) -> bool:
        now = time.monotonic()
        if now - self._called_at < CALL_SECONDS:
            return False
        self._called_at = now
        return self._workers.called("council")

    def _council(self, stop: bool = False) -> None:
        """Meet the others, wherever they are, and take the cut that was called for."""
        self._workers.meet("council")
        if self._any(stop):
            raise StopRequested
        self._start()

    def pass_trained(self) -> None:
        """Wait, in `async`, until the others have come to the end of the pass; they may call until then."""
        if self._apart and self._plan is not None:
            self._workers.meet("end of the pass", meanwhile=self._answer_calls)

    def _answer_calls(self) -> None:
        if self._is_called():
            self._council()

    def epoch_ended(self) -> None:
        """Take note that a pass and its evaluation are over."""
        self.epoch, self.amid_pass = self.epoch + 1, False
        self.reading.begin()

    def replayed(self, requests: Sequence[Request]) -> tuple[Future[list[Rows]], int] | None:
        """Return the lookup that was in flight when the snapshot was taken, with the updates it had seen.

        Raises:
            CheckpointError: the data is not what it was.
        """
        if not self._replay:
            return None
        seen, answers = self._replay.popleft()
        wanted = distinct_requests(self._trainer.plan, requests)
        same = len(answers) == len(wanted) and all(
            _same_ids(answer, request.ids) for answer, request in zip(answers, wanted, strict=True)
        )
        if not same:
            raise CheckpointError(
                "the data is not what it was when the snapshot was taken",
                where=f"step {self._trainer.run.steps + 1}",
                why="going on would not give the result of an undisturbed run",
                fix="bring the old data back, or start anew",
            )
        rows = [answer.rows for answer in answers]
        return replay(self._trainer.exchange, self._trainer.plan, requests, rows), seen

    def _start(self) -> None:
        """Take the cut, and write it in the background."""
        self._due = False
        if (write := self._cut()) is not None:
            self._writer.start(write)

    def _write(self, step: int, checkpoint: Checkpoint, put_back: Callable[[], None]) -> None:
        assert self.series is not None
        try:
            self.series.write(step, checkpoint)
        except BaseException:
            self._make_up_for(put_back)
            raise

    def _make_up_for(self, put_back: Callable[[], None]) -> None:
        """Have the next snapshot hold what this one did; if that cannot be, have it hold everything."""
        assert self.series is not None
        try:
            put_back()
        except BaseException:
            self.series.unfollow()
            raise

    def keep_best(self) -> None:
        """Have the present weights kept as the best; a full disk is told, and training goes on."""
        warning = self._trainer.run.keep_best(self._trainer)
        if warning and self._workers.rank == 0:
            (self._plan.notice if self._plan else _warn)(warning)

    def save(self) -> None:
        """Write a snapshot now.

        Raises:
            CheckpointError: it cannot be written.
        """
        self._writer.wait()
        if (write := self._cut()) is not None:
            write()

    def finish(self) -> None:
        """Wait until everything is written, and report what failed."""
        self._writer.wait()
        if error := self._writer.failure():
            self._report(error)

    def _report(self, error: SatrapError) -> None:
        assert self._plan is not None
        self._plan.notice(f"warning: {error}")

    def _cut(self) -> Callable[[], None] | None:
        """Return, on rank 0, what writes the present state of all workers; nothing of it can change any more.

        From the meeting until rank 0 gathers what the others know, no update is under way anywhere: that is
        the instant.
        """
        trainer, workers, begun = self._trainer, self._workers, time.perf_counter()
        trainer.exchange.flush()
        workers.meet("cut")
        cut = trainer.exchange.cut(delta=self._as_delta()) if workers.rank == 0 else None
        run, extra = self._own_state()
        others = workers.gather(pack_worker(run, extra) if workers.rank else b"")[1:]
        checkpoint = None if cut is None else self._whole(cut, run, extra, others)
        self.pauses.append(time.perf_counter() - begun)
        trainer.run.pauses = self.pauses
        if cut is None or checkpoint is None:
            return None
        return partial(self._write, trainer.run.steps, checkpoint, cut.put_back)

    def _as_delta(self) -> bool | None:
        """Return whether the snapshot of now may hold changes only; None: never."""
        full, self._full = self._full, False
        if self._plan is None or self._plan.delta_every_steps is None or self.series is None:
            return None
        return not full and self.series.followable(self._trainer.run.steps)

    def _whole(
        self, cut: Cut, run: dict[str, Any], extra: dict[str, Tensor], others: Sequence[bytes]
    ) -> Checkpoint:
        described = self._trainer.describe()
        peers = [unpack_worker(data) for data in others]
        described.settings |= {"run": run, "peers": [peer for peer, _ in peers], COUNTS: dict(cut.counts)}
        if best := self._trainer.run.best_name:
            described.settings["best"] = best
        return Checkpoint(
            described.settings,
            _cloned(described.model),
            _cloned(described.optimizer),
            (),
            extra,
            [tensors for _, tensors in peers],
            cut.write,
            cut.deleted,
        )

    def _own_state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return what this worker alone knows, as plain data and as tensors of its own."""
        trainer = self._trainer
        extra: dict[str, Tensor] = {"random.cpu": torch.get_rng_state()}
        if trainer.device.type == "cuda":
            extra["random.cuda"] = torch.cuda.get_rng_state(trainer.device)
        if self._workers.rank:  # rank 0's are in the model
            extra |= {f"buffer.{name}": t.detach().cpu().clone() for name, t in trainer.model.named_buffers()}
        run, arrays = trainer.run.state()
        arrays = {**{f"run.{k}": v for k, v in arrays.items()}, **self._in_flight()}
        extra |= {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
        run |= {
            "epoch": self.epoch,
            "streams": self.reading.state(),
            "in_flight": [pending.updates_seen for _, pending in self.ahead if pending is not None],
            "control": [trainer.control.best, trainer.control.bad],
        }
        return run, extra

    def _in_flight(self) -> dict[str, npt.NDArray[Any]]:
        arrays: dict[str, npt.NDArray[Any]] = {}
        for number, (_, pending) in enumerate(self.ahead):
            if pending is not None:  # only after the last batch there is none
                wanted = distinct_requests(self._trainer.plan, pending.requests)
                found = recall(self._trainer.exchange, pending.requests, pending.future.result())
                for i, (request, rows) in enumerate(zip(wanted, found, strict=True)):
                    arrays[f"ahead.{number}.{i}.ids"] = request.ids
                    arrays[f"ahead.{number}.{i}.rows"] = rows
        return arrays

    def resume(self) -> int:
        """Bring the trainer to the state of the newest snapshot; return its step.

        Raises:
            ConfigError: there is none, or it is of another model or other settings.
            CheckpointError: it is damaged.
        """
        trainer, workers, series = self._trainer, self._workers, self.series
        whole, step = None, 0
        if workers.rank == 0:
            if series is None or series.latest() is None:
                raise ConfigError(
                    "there is nothing to resume",
                    where="no checkpoint was given" if series is None else f"no snapshot in {series.url}",
                    why="a fresh start would not be the run that was asked for",
                    fix="train without resume, or name the place of its snapshots",
                )
            step, whole = series.read()
            _check_same(whole.settings, trainer.describe().settings, series.place(step))
        assert series is not None
        checkpoint, extras = shared_with_extras(whole, workers)
        with understood(series.url):
            place = series.place(int(checkpoint.settings["steps"]))
        assert self._plan is not None
        trainer.restore(checkpoint, place, follow=self._plan.delta_every_steps is not None)
        with understood(place):
            self._go_on(checkpoint.settings, extras)
        return int(checkpoint.settings["steps"])

    def _go_on(self, settings: Mapping[str, Any], extras: Sequence[Mapping[str, Tensor]]) -> None:
        """Take over what this worker alone knew; of another number of workers, what all have in common."""
        trainer, rank, series = self._trainer, self._workers.rank, self.series
        runs = [settings["run"], *settings["peers"]]
        same = len(runs) == self._workers.world
        run, extra = (runs[rank], extras[rank]) if same else (_common(runs, rank, trainer.mode), extras[0])
        trainer.control.best, trainer.control.bad = run["control"]
        best = settings.get("best")
        if best is None and trainer.control.patience is not None:
            trainer.control.forget_best()
        assert series is not None
        trainer.run.restore(run, _part(extra, "run."), f"{series.url}/{best}" if best else None)
        self.epoch = run["epoch"]
        self.amid_pass = any(stream["done"] for one in runs for stream in one["streams"])
        self.reading.restore([one["streams"] for one in runs])
        if rank < len(runs):
            self._restore_random(extras[rank])
        if not same:
            return
        for number, seen in enumerate(run["in_flight"]):
            found = _part(extra, f"ahead.{number}.")
            self._replay.append((seen, _answers(found)))
        buffers = dict(trainer.model.named_buffers())
        with torch.no_grad():
            for name, value in _part(extra, "buffer.").items():
                buffers[name].copy_(torch.from_numpy(value))

    def _restore_random(self, extra: Mapping[str, Tensor]) -> None:
        torch.set_rng_state(extra["random.cpu"])
        if "random.cuda" in extra and self._trainer.device.type == "cuda":
            torch.cuda.set_rng_state(extra["random.cuda"], self._trainer.device)


def _common(runs: Sequence[Mapping[str, Any]], rank: int, mode: str) -> dict[str, Any]:
    """Return the account of a worker of a group that is larger or smaller than before."""
    run = {**runs[0], "progress": dict(runs[0]["progress"])}
    if mode == "async":  # each counts its own
        run["progress"]["samples"] = 0 if rank else sum(one["progress"]["samples"] for one in runs)
    return run


@dataclass(frozen=True, slots=True)
class _Answer:
    """A lookup that was in flight: its ids, those forgotten since (positions), and the rows."""

    ids: npt.NDArray[np.uint64]
    forgotten: npt.NDArray[np.int64]
    rows: Rows


def _answers(found: Mapping[str, npt.NDArray[Any]]) -> list[_Answer]:
    none, count = np.empty(0, np.int64), sum(name.endswith(".rows") for name in found)
    return [
        _Answer(found[f"{i}.ids"], found.get(f"{i}.forgotten", none), found[f"{i}.rows"])
        for i in range(count)
    ]


def _same_ids(answer: _Answer, ids: npt.NDArray[np.uint64]) -> bool:
    """Return whether a lookup has the ids of the one that was in flight, as far as they are known."""
    if len(answer.ids) != len(ids):
        return False
    differ = answer.ids != ids
    differ[answer.forgotten] = False
    return not differ.any()


@dataclass(frozen=True, slots=True)
class _Stoppable:
    """Data whose reading ends when a stop is asked for."""

    data: Data
    stopping: Callable[[], bool]

    def batches(self, epoch: int = 0, position: Any = None) -> Iterator[Batch]:
        """Iterate as the data does."""
        for batch in self.data.batches(epoch, position):
            if self.stopping():
                return
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
