"""Publishes rows and network while a run trains, for servers that score with them."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from satrap.checkpoint import Checkpoint
from satrap.checkpoint.feed import FEED, Feed, feed_settings
from satrap.checkpoint.files.storage import Storage
from satrap.errors import ConfigError
from satrap.exchange.states import Counts
from satrap.settings.saving import Publishing
from satrap.train.state.across_workers import told
from satrap.train.state.state_writer import StateWriter, Worker
from satrap.train.state.training_state import TrainingState

FEED_RUN, FEED_CUT = "feed_run", "feed_cut"
"""Settings of a snapshot: the feed's name for its run, and the version with the rows of the snapshot."""


class Publisher:
    """Publishes the versions of one `fit`, or none without a plan; made by `Trainer.fit`.

    All workers call the same methods. Process 0 has the clock, and writes.

    Attributes:
        active: whether there is a plan.
        run: the feed's name for the run, in process 0.
        beside: the version that was cut with the last snapshot, in process 0; "" if there was none.
    """

    def __init__(self, state: TrainingState, plan: Publishing | None) -> None:
        self._state, self._plan, self._workers = state, plan, state.workers
        self.active, self.run, self.beside = plan is not None, "", ""
        self._until, self._due_at = 1, 0.0  # steps until the next check of the clock; when a version is due
        self._published, self._cut = -1, ""  # the last version: its step, and its cut in process 0
        self._looked = (0, time.monotonic())  # step and time of the last check
        if plan is not None:
            self._feed = Feed(plan.url, keep=plan.keep, full_every=plan.full_every, notice=plan.notice)
            self._writer = StateWriter(
                state, self._feed, self._contents, own=lambda: ({}, {}), feed=plan.dtype
            )

    def begin(self, saved: Mapping[str, Any], snapshots: str | None) -> None:
        """Take over the feed before the first step, or after a snapshot was restored.

        Args:
            saved: settings of that snapshot, in process 0.
            snapshots: URL of the snapshots of this run.

        Raises:
            ConfigError: the feed is in the folder of snapshots, or another run publishes there.
        """
        self.run = str(saved.get(FEED_RUN) or secrets.token_hex(8))
        if self._plan is not None:
            self._workers.solo(
                "opening the feed", lambda: self._open(snapshots, str(saved.get(FEED_CUT, "")))
            )
            self._looked = self._state.run.steps, time.monotonic()

    def _open(self, snapshots: str | None, cut: str) -> None:
        assert self._plan is not None
        if snapshots is not None and Storage(snapshots).absolute == Storage(self._plan.url).absolute:
            raise ConfigError(
                "the feed is in the folder of snapshots",
                where=self._plan.url,
                why="snapshots and versions of a feed have different contents and cannot share a folder",
                fix="give publish.url a folder of its own",
            )
        step = self._state.run.steps
        if self._feed.take_over(self.run, step, cut=cut, dtype=self._plan.dtype):
            self._published, self._cut = step, cut

    @property
    def writing(self) -> bool:
        """Whether this process is writing a version."""
        return self.active and self._writer.busy

    def due(self) -> bool:
        """Return whether it is time for a version, by the clock of this process."""
        return self.active and time.monotonic() >= self._due_at and not self._writer.busy

    def stepped(self) -> None:
        """After a step of all workers, publish if it is time, by the clock of process 0."""
        self._until -= 1
        if not self.active or self._until > 0:
            return
        # The clocks of workers differ, so rank 0 decides for all, and also after how many steps all of them
        # take part in the next check. Checking after every step would cost a broadcast per step.
        due, self._until = told(self._workers, [self._is_new() and self.due(), self._next_look()])
        if due:
            self.publish()

    def idle(self) -> None:
        """While no worker steps, publish the last step if it is time."""
        if self.active and told(self._workers, self._is_new() and self.due()):
            self.publish()

    def _is_new(self) -> bool:
        """Return whether this process has made a step since the last version."""
        return self._published != self._state.run.steps

    def publish_beside(self) -> None:
        """Publish the contents of the snapshot that follows: a run resumed from it can then publish a delta.

        This is skipped while a version is being written, since a snapshot does not wait for it.
        """
        if not self.active:
            return
        there = not self._is_new() and not self._state.steps_alone
        publishes = told(self._workers, not there and not self._writer.busy)
        if publishes:
            self.publish()
        self.beside = self._cut if there or publishes else ""

    def _next_look(self) -> int:
        """Return the number of steps for about half of the time until the next version."""
        steps, (before, then), now = self._state.run.steps, self._looked, time.monotonic()
        self._looked = steps, now
        assert self._plan is not None
        remaining = self._due_at - now
        if remaining <= 0:
            remaining = self._plan.every / 10 if self._writer.busy else self._plan.every
        return max(1, int((steps - before) / max(now - then, 1e-6) * remaining / 2))

    def publish(self) -> None:
        """Take a version, and write it in the background."""
        assert self._plan is not None
        self._report()
        self._due_at = time.monotonic() + self._plan.every
        step = self._published = self._state.run.steps
        self._writer.start(delta=self._feed.followable(step))

    def ended(self, *, last: bool) -> None:
        """Publish the `last` step unless this was done, and wait until everything is written."""
        if not self.active:
            return
        if last and told(self._workers, self._is_new()):  # in `async` each worker has its own steps
            self._writer.wait()
            self.publish()
        self._writer.wait()
        self._report()
        self._feed.finish()

    def _report(self) -> None:
        assert self._plan is not None
        if (error := self._writer.failure()) is not None:
            self._plan.notice(f"warning: the run continues, but this version was not published: {error}")

    def _contents(self, counts: Counts, workers: Sequence[Worker]) -> Checkpoint:
        """See `StateWriter`."""
        assert self._plan is not None
        feed = feed_settings(self.run, self._plan.dtype, self._plan.missing)
        self._cut = feed["cut"]
        return Checkpoint(self._state.settings() | {FEED: feed}, {}, {}, ())
