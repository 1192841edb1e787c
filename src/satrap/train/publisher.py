"""Publishes rows and network while a run trains, for those who score with them."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from satrap.arguments import checked
from satrap.checkpoint import Checkpoint
from satrap.checkpoint.feed import FEED, Feed, feed_settings
from satrap.checkpoint.storage import Storage
from satrap.errors import ConfigError
from satrap.exchange import Cut
from satrap.store.chunk import FEED_FORMATS
from satrap.train.state import TrainingState
from satrap.train.state_writer import StateWriter, Worker, as_warning

T = TypeVar("T")

FEED_RUN, FEED_CUT = "feed_run", "feed_cut"
"""Settings of a snapshot: by what a feed knows its run, and the version with the rows of the snapshot."""


@checked()
@dataclass(frozen=True, slots=True)
class Publishing:
    """Where and how often `Trainer.fit` publishes a version of the model, for servers that follow the run.

    ```python
    feed = satrap.train.Publishing("s3://models/ads/feed", every=5.0)
    trainer.fit(data, checkpoint=satrap.train.Checkpointing("runs/x/checkpoints", publish=feed))
    ```

    A version has weights only: of the network, and of all rows or of those that changed since the version
    before. So it is smaller than a snapshot, and training cannot be resumed from it. Every version is of
    exactly one step. One that cannot be written does not end training: `notice` is called, and the next
    one includes what it would have had. `Predictor.load(url)` reads the newest version.

    Args:
        url: folder or fsspec URL of the feed; no other run may publish there.
        every: seconds between two versions, default 5. With several workers it takes a little longer where
            their steps become slower.
        full_every: versions from one with all rows to the next, default 100: a server that starts reads the
            last of these and all versions after it. Process 0 makes it from the versions before.
        dtype: number format of rows, "float32" (default) or "float16".
        keep: how many of the versions with all rows to keep, with those after each, default 2.
        notice: called with a text about versions that could not be written; default a RuntimeWarning.
        missing: texts that mean that a value is missing, for servers that know only the feed; default those
            of `satrap.data.read`.

    Raises:
        ConfigError: a number is too small, or the format is unknown.
    """

    url: str
    every: float = 5.0
    full_every: int = 100
    dtype: str = "float32"
    keep: int = 2
    notice: Callable[[str], None] = as_warning
    missing: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if not 0 < self.every < float("inf"):
            raise ConfigError(f"publish: every must be a number of seconds above 0, got {self.every}")
        for name in ("full_every", "keep"):
            if getattr(self, name) < 1:
                raise ConfigError(f"publish: {name} must be >= 1, got {getattr(self, name)}")
        if self.dtype not in FEED_FORMATS:
            raise ConfigError(
                f"publish: dtype {self.dtype!r} is unknown", fix=f"allowed: {', '.join(FEED_FORMATS)}"
            )


class Publisher:
    """Publishes the versions of one `fit`, or none without a plan; made by `Trainer.fit`.

    All workers call the same methods. Process 0 has the clock, and writes.

    Attributes:
        active: whether there is a plan.
        run: by what the feed knows the run, in process 0.
        beside: the version that was cut with the last snapshot, in process 0; "" if there was none.
    """

    def __init__(self, state: TrainingState, plan: Publishing | None) -> None:
        self._state, self._plan, self._workers = state, plan, state.workers
        self.active, self.run, self.beside = plan is not None, "", ""
        self._until, self._due_at = 1, 0.0  # steps until the next look at the clock; when a version is due
        self._published, self._cut = -1, ""  # the last version: its step, and its cut in process 0
        self._looked = (0, time.monotonic())  # step and time of the last look
        if plan is not None:
            self._feed = Feed(plan.url, keep=plan.keep, full_every=plan.full_every, notice=plan.notice)
            self._writer = StateWriter(
                state,
                self._feed,
                self._contents,
                own=lambda: ({}, {}),
                group=lambda: state.workers.feed,
                feed=plan.dtype,
            )

    def begin(self, saved: Mapping[str, Any], snapshots: str | None) -> None:
        """Take the feed over before the first step, or after a snapshot was restored.

        Args:
            saved: settings of that snapshot, in process 0.
            snapshots: URL of the snapshots of this run.

        Raises:
            ConfigError: it is the folder of snapshots, or another run publishes there.
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
                why="a snapshot holds all that training needs, a version of the feed does not",
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
        """After a step of all workers, publish if it is time; all look at process 0's clock now and then."""
        self._until -= 1
        if not self.active or self._until > 0:
            return
        due, self._until = self._told([self._is_new() and self.due(), self._next_look()])
        if due:
            self.publish()

    def idle(self) -> None:
        """While no worker steps, publish the last step if it is time."""
        if self.active and self._told(self._is_new() and self.due()):
            self.publish()

    def _is_new(self) -> bool:
        """Return whether this process has made a step since the last version."""
        return self._published != self._state.run.steps

    def publish_beside(self) -> None:
        """Publish what a snapshot is about to hold: a run that goes on from it can then publish a delta.

        It is not done while a version is being written, since no snapshot waits for that.
        """
        if not self.active:
            return
        there = not self._is_new() and not self._state.apart
        wanted = self._told(not there and not self._writer.busy)
        if wanted:
            self.publish()
        self.beside = self._cut if there or wanted else ""

    def _told(self, said: T) -> T:
        """Return what process 0 says."""
        if self._workers.size == 1:
            return said
        told: T = json.loads(self._workers.share(json.dumps(said).encode()))
        return told

    def _next_look(self) -> int:
        """Return after how many steps about half of the time until the next version will have passed."""
        steps, (before, then), now = self._state.run.steps, self._looked, time.monotonic()
        self._looked = steps, now
        assert self._plan is not None
        left = self._due_at - now
        if left <= 0:
            left = self._plan.every / 10 if self._writer.busy else self._plan.every
        return max(1, int((steps - before) / max(now - then, 1e-6) * left / 2))

    def publish(self) -> None:
        """Take a version, and write it in the background."""
        assert self._plan is not None
        self._report()
        self._due_at = time.monotonic() + self._plan.every
        step = self._published = self._state.run.steps
        self._writer.start(delta=self._feed.followable(step))

    def ended(self, *, last: bool) -> None:
        """Wait until everything is written; before, publish the `last` step unless this was done."""
        if not self.active:
            return
        if last and self._told(self._is_new()):  # in `async` each has its own steps
            self._writer.wait()
            self.publish()
        self._writer.wait()
        self._report()
        self._feed.finish()

    def _report(self) -> None:
        assert self._plan is not None
        if (error := self._writer.failure()) is not None:
            self._plan.notice(f"warning: the run goes on, but this version was not published: {error}")

    def _contents(self, cut: Cut, workers: Sequence[Worker]) -> Checkpoint:
        """See `StateWriter`."""
        assert self._plan is not None
        feed = feed_settings(self.run, self._plan.dtype, self._plan.missing)
        self._cut = feed["cut"]
        return Checkpoint(self._state.settings() | {FEED: feed}, {}, {}, ())
