"""Decides when a run takes snapshots, collects their contents, and resumes from one."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from satrap.batch import Batch
from satrap.checkpoint import Checkpoint
from satrap.checkpoint.feed import check_resumable
from satrap.checkpoint.manifest import reading_settings
from satrap.checkpoint.series import Series
from satrap.errors import ConfigError
from satrap.exchange.states import COUNTS, Counts
from satrap.settings.saving import Checkpointing, as_warning
from satrap.train.publisher import FEED_CUT, FEED_RUN, Publisher
from satrap.train.state.across_workers import opened_network, shared, told
from satrap.train.state.same_data import DATA, Plain, check_same, fingerprint
from satrap.train.state.state_writer import StateWriter, Worker
from satrap.train.state.training_state import TrainingState

CALL_SECONDS = 0.02
"""In `async`: seconds between two checks whether another worker waits at the barrier."""

CHANGING = ("steps", "lr_scale", "loss_scale", "loss_scale_steps", "dense_optimizer", "run", "best")
"""Settings of a snapshot that may differ from the trainer's."""


class StopRequested(KeyboardInterrupt):
    """`Trainer.request_stop` was called; the state is consistent."""


class Snapshots:
    """Takes the snapshots of one `fit`, or none without a plan; made by `Trainer.fit`.

    The loop reports its events. All workers call the same methods: they agree when to take a snapshot,
    synchronize at the cut, and rank 0 writes; ranks that hold rows write their own.
    """

    def __init__(self, state: TrainingState, plan: Checkpointing | None, data: object) -> None:
        self._state, self._plan, self._workers, self._series = state, plan, state.workers, state.series
        self._data, self._publisher = data, Publisher(state, None if plan is None else plan.publish)
        self._saved: Mapping[str, Any] = {}  # settings of the snapshot from which the run was resumed
        self._read: Plain | None = None  # fingerprints of the rows of this epoch, in process 0
        self._writer = None
        if self._series is not None:
            self._writer = StateWriter(state, self._series, self._contents, own=state.of_worker)
        self._due = self._full = False
        self._called_at = 0.0

    def writing(self) -> bool:
        """Return whether a snapshot or a version of a feed is being written."""
        return self._busy or self._publisher.writing

    @property
    def _busy(self) -> bool:
        return self._writer is not None and self._writer.busy

    def pass_begins(self) -> None:
        """Raise `StopRequested` if a stop was requested on any worker."""
        if self._plan is not None:
            self._meet("start of the epoch")  # observers of a worker may have taken long
            if not self._state.position.amid_pass:  # otherwise `resume` has read the fingerprints
                self._workers.solo("looking at the data", self._look)

    def _look(self) -> None:
        self._read = fingerprint(self._data)

    def stoppable(self, batches: Iterable[Batch]) -> Iterable[Batch]:
        """Return the batches of an evaluation; reading ends early when a stop is requested."""
        return itertools.takewhile(lambda _: not self._state.stopping, batches) if self._plan else batches

    def evaluated(self) -> None:
        """Synchronize the workers after an evaluation; `StopRequested` means that samples may be missing."""
        if self._plan is not None:
            self._meet("end of the evaluation")

    def _meet(self, stage: str) -> None:
        """A barrier; raise `StopRequested` behind it if a stop was requested on any worker."""
        self._workers.meet(stage)
        if self.any_worker(self._state.stopping):
            raise StopRequested

    def __enter__(self) -> Snapshots:
        self._state.fitting = True
        if self._plan is not None:
            self._publisher.begin(self._saved, self._plan.url)
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        """On `StopRequested`, save and suppress it; always wait for the writer."""
        self._state.fitting = self._state.stopping = False
        stopped = isinstance(error, StopRequested)
        if stopped:
            self._state.run.stopped = "stopped"
            self.save()
        self._publisher.ended(last=stopped)
        self.finish()
        if error is None and self._series is not None and self._workers.rank == 0:
            self._series.prune(finished=True)
        return stopped

    def stepped(self, *, stop: bool) -> None:
        """Save and publish after a step if it is time.

        If `stop`, this was the last step: raise `StopRequested`, or KeyboardInterrupt without a place to
        save.
        """
        if self._plan is not None:
            self._due |= self._is_time(self._plan.delta_every_steps)
            if self._is_time(self._plan.every_steps):
                self._due = self._full = True
        self._save_if_due(stop, self._publisher.stepped)

    def idle(self) -> None:
        """While no worker has a batch, save and publish if due; `StopRequested` if a stop was requested.

        Without a plan a requested stop is a KeyboardInterrupt.
        """
        stop, apart = self._state.stopping, self._plan is not None and self._state.steps_alone
        self._save_if_due(stop if apart else self.any_worker(stop), self._publisher.idle)

    def _save_if_due(self, stop: bool, publish: Callable[[], None]) -> None:
        if self._plan is None:
            if stop:
                raise KeyboardInterrupt
            return
        self._report_failure()
        if self._state.steps_alone:
            self._stepped_apart(stop)
            return
        if stop:
            raise StopRequested
        # `_due` depends on the step alone, so all workers reach `any_worker` together. A snapshot that is due
        # while another is being written is taken later; training does not wait.
        if self._due and not self.any_worker(self._busy):
            self._start()
        publish()

    def _is_time(self, every: int | None) -> bool:
        return every is not None and self._state.run.steps % every == 0

    def any_worker(self, flag: bool) -> bool:
        """Return whether the flag is true on any worker; a collective call, after the same step."""
        if self._workers.size == 1:
            return flag
        flags = torch.tensor([float(flag)])
        self._workers.sum(flags)
        return bool(flags[0] > 0)

    def _stepped_apart(self, stop: bool) -> None:
        """In `async`, rank 0 calls the others to a cut; a worker that should stop calls all."""
        # Steps of workers differ in `async`, so no step number can fix the moment. A worker that wants a cut
        # or a stop waits at the barrier; the others check now and then whether a worker waits there.
        due = self._workers.rank == 0 and any(self._wishes())
        if stop or due or self._is_called():
            self._agree_on_cut(stop)

    def _wishes(self) -> list[bool]:
        """Return whether it is time for a snapshot, and for a version of the feed."""
        return [self._due and not self._busy, self._publisher.due()]

    def _is_called(self) -> bool:
        now = time.monotonic()
        if now - self._called_at < CALL_SECONDS:
            return False
        self._called_at = now
        return self._workers.called("agreement on a snapshot or stop")

    def _agree_on_cut(self, stop: bool = False) -> None:
        """Synchronize the workers, each at its present step, and take the cuts that rank 0 decides."""
        self._workers.meet("agreement on a snapshot or stop")
        if self.any_worker(stop):
            raise StopRequested
        snapshot, version = told(self._workers, self._wishes())
        if snapshot:
            self._start()
        elif version:
            self._publisher.publish()

    def pass_trained(self) -> None:
        """In `async`, wait until the others reach the end of the epoch, and take part in their cuts."""
        if self._state.steps_alone and self._plan is not None:
            self._workers.meet("end of the epoch", meanwhile=self._answer_calls)

    def _answer_calls(self) -> None:
        if self._is_called():
            self._agree_on_cut()

    def _start(self) -> None:
        """Take the cut, and write it in the background."""
        self._due = False
        assert self._writer is not None
        self._publisher.publish_beside()
        self._writer.start(delta=self._as_delta())

    def warn(self, text: str) -> None:
        """Notify the user, once for all workers."""
        if text and self._workers.rank == 0:
            (self._plan.notice if self._plan else as_warning)(text)

    def save(self) -> None:
        """Write a snapshot now, or raise `CheckpointError`."""
        assert self._writer is not None
        self._publisher.publish_beside()
        self._writer.save(delta=self._as_delta())

    def keep_place(self, of_stream: bool) -> bool:
        """Save at the end of a stream, so that the run can resume with later events.

        `of_stream`: whether this worker had events of a stream. Returns whether any worker had.
        """
        if self._plan is not None or not self._state.steps_alone:  # else, workers end their epochs apart
            self._workers.meet("end of an epoch")  # one may still evaluate; a barrier has no deadline
            of_stream = self.any_worker(of_stream)
        if of_stream and self._writer is not None:
            self._writer.wait()
            self.save()
        return of_stream

    def wait_for_snapshot(self) -> None:
        """If all ranks are writing a snapshot, wait: they can write only one at a time."""
        if self._state.exchange.collective and self._writer is not None:
            self._writer.wait()

    def finish(self) -> None:
        """Wait until everything is written, and report failures."""
        if self._writer is not None:
            self._writer.wait()
            self._report_failure()

    def ended(self) -> None:
        """Publish the last step; wait until all workers have written everything, however long it takes."""
        self._publisher.ended(last=True)
        self.finish()
        self._workers.meet("end of writing")  # a barrier waits as long as all are alive

    def _report_failure(self) -> None:
        assert self._writer is not None
        assert self._plan is not None
        if error := self._writer.failure():
            self._plan.notice(f"warning: {error}")

    def _as_delta(self) -> bool | None:
        """Return whether a snapshot now can be a delta; None: this run has no deltas."""
        full, self._full = self._full, False
        if self._plan is None or self._plan.delta_every_steps is None or self._series is None:
            return None
        return not full and self._series.followable(self._state.run.steps)

    def _contents(self, counts: Counts, workers: Sequence[Worker]) -> Checkpoint:
        """See `StateWriter`."""
        (run, *peers), (extra, *others) = zip(*workers, strict=True)
        settings = self._state.settings() | {"run": run, "peers": peers, COUNTS: dict(counts)}
        settings[DATA], settings[FEED_RUN] = self._read, self._publisher.run
        if beside := self._publisher.beside:
            settings[FEED_CUT] = beside
        if best := self._state.best.name:
            settings["best"] = best
        return Checkpoint(settings, {}, {}, (), extra, others)

    def resume(self) -> None:
        """Restore the state from the newest snapshot; `ConfigError` if there is none of the same training."""
        state, workers, series, plan = self._state, self._workers, self._series, self._plan
        whole, place = None, ""
        if workers.rank == 0:
            if series is None or series.latest() is None:
                raise ConfigError(
                    "there is nothing to resume",
                    where="no checkpoint was given" if series is None else f"no snapshot in {series.url}",
                    why="resume was requested",
                    fix="train without resume, or give the folder of the run's snapshots",
                )
            step, whole = series.open()
            place = series.place(step)
            check_resumable(whole.settings, place)
            self._look()
            check_same(whole.settings, self._read, place, self.warn)
            _check_same(whole.settings, state.settings(), place)
        # A barrier, because rank 0 may take long; `opened_network` then starts with a broadcast, which has a
        # deadline.
        workers.meet("opening the snapshot")
        assert series is not None
        assert plan is not None
        dense = opened_network(workers, place, whole=state.dense.whole)
        checkpoint = shared(whole, workers, dense)
        with reading_settings(series.url):
            place = series.place(int(checkpoint.settings["steps"]))
        feed = self._publisher.active and FEED_CUT in checkpoint.settings
        state.restore(checkpoint, place, follow=plan.delta_every_steps is not None, feed=feed)
        with reading_settings(place):
            state.restore_worker(checkpoint)
        self._saved = checkpoint.settings


def _check_same(saved: Mapping[str, Any], own: Mapping[str, Any], where: str) -> None:
    present = json.loads(json.dumps(own))  # in the form of the saved settings, without tuples
    for key in own.keys() - set(CHANGING):
        if present[key] != saved.get(key):
            raise ConfigError(
                f"the snapshot was taken with another {key.replace('_', ' ')}",
                where=where,
                why="the result would differ from a single run",
                fix=f"use {str(saved.get(key))[:120]}, or start a new run",
            )


def series_of(plan: Checkpointing | None) -> Series | None:
    """Return the snapshots of a plan; None without one."""
    return None if plan is None else Series(plan.url, keep=plan.keep)
