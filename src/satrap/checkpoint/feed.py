"""The versions that a run publishes for those who score with it while it trains."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from satrap.checkpoint.background import Background
from satrap.checkpoint.manifest import Manifest
from satrap.checkpoint.rewrite import compact
from satrap.checkpoint.series import Series, name_of
from satrap.checkpoint.snapshot import Checkpoint
from satrap.errors import CheckpointError, ConfigError

FEED = "feed"
"""Setting of a version: what kind of feed it belongs to, and of which run."""
FOLLOWERS_BEHIND = 10
"""Versions that a follower may be behind before it finds a full version in place of a delta."""
FEED_FORMAT = 1
"""Version of what a feed holds; readers refuse any other."""


def feed_settings(run: str, dtype: str, missing: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the setting `FEED` of a version that is cut now.

    Args:
        run: by what the feed knows it.
        dtype: number format of the weights of rows.
        missing: texts that mean that a value is missing; None: the default ones.
    """
    return {
        "format": FEED_FORMAT,
        "run": run,
        "dtype": dtype,
        "time": round(time.time(), 3),
        "cut": secrets.token_hex(8),  # by it, a snapshot names the version that was cut with it
        "missing": missing,
    }


def missing_texts(settings: Mapping[str, Any]) -> list[str] | None:
    """Return the texts that mean a missing value, as a version of a feed says; None: the default ones."""
    texts = settings[FEED].get("missing")
    return None if texts is None else [str(text) for text in texts]


def check_format(settings: Mapping[str, Any], where: str) -> None:
    """Raise `CheckpointError` if a checkpoint is of a feed of another format than this version reads."""
    if not is_feed(settings):
        return
    found = settings[FEED]
    number = found.get("format") if isinstance(found, dict) else None
    if number != FEED_FORMAT:
        raise CheckpointError(
            f"feed format {str(number)[:20]} is not known to this version, which reads {FEED_FORMAT}",
            where=where,
            fix="use the version of satrap that wrote it",
        )


def published_at(settings: Mapping[str, Any], where: str) -> float:
    """Return when a version was cut, in seconds since 1970; of another checkpoint, the present.

    Raises:
        CheckpointError: see `check_format`.
    """
    check_format(settings, where)
    return float(settings[FEED]["time"]) if is_feed(settings) else time.time()


def is_feed(settings: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint is a version of a feed: weights only."""
    return settings.get(FEED) is not None


def check_resumable(settings: Mapping[str, Any], where: str) -> None:
    """Raise `CheckpointError` if a checkpoint is a version of a feed, with which training cannot go on."""
    if is_feed(settings):
        raise CheckpointError(
            "this is a version of a feed: it holds weights only",
            where=where,
            why="training would go on without the optimizers' states",
            fix="load a snapshot or the trained model of the run; to score, use Predictor.load",
        )


class Feed(Series):
    """The versions of one run at one place, in the layout of snapshots: a full one, then deltas.

    Only the run that began a feed may write to it. Those who follow it only ever read deltas. For those who
    begin later, now and then a delta is made a full version, from what was written before, in a thread of its
    own. It is one that followers have read by then.

    Args:
        url: folder or fsspec URL.
        keep: full versions to keep, each with the deltas after it, default 2.
        full_every: versions from one full one to the next, default 100.
        notice: called with a text if a delta could not be made a full version; the next version is full.
    """

    def __init__(
        self,
        url: str,
        *,
        keep: int = 2,
        full_every: int = 100,
        notice: Callable[[str], object] = lambda _: None,
    ) -> None:
        super().__init__(url, keep=keep)
        self._full_every, self._notice = full_every, notice
        self._since: list[int] = []  # steps of the deltas after the last full version
        self._compacting, self._changing = Background(), threading.Lock()

    def take_over(self, run: str, step: int, *, cut: str = "", dtype: str = "") -> bool:
        """Prepare to write from a step of a run on: versions of later steps are removed.

        Args:
            run: by what the feed knows it.
            step: of the snapshot from which the run goes on.
            cut: of the version with the rows of that snapshot: if it is the newest, and has rows in this
                number format, a delta can follow it.
            dtype: that format.

        Returns:
            Whether the newest version is that one.

        Raises:
            ConfigError: the place has the versions of another run, or something else.
            CheckpointError: the place cannot be listed, or its newest version cannot be read.
        """
        if (wrong := self._not_of(run)) is not None:
            raise ConfigError(
                wrong,
                where=self.url,
                why="a server that follows the feed would get the rows of both",
                fix="publish to another url, or remove the folder if nobody needs it",
            )
        for late in reversed([one for one in self.steps() if one > step]):
            self._remove(name_of(late))
        if cut and (newest := self.latest()) is not None:
            manifest = self.manifest(newest)
            found = manifest.settings[FEED]
            if (found.get("cut"), found["dtype"]) == (cut, dtype):
                self._last = name_of(newest), manifest
                self._since = self._after_full()
                return True
        return False

    def _after_full(self) -> list[int]:
        """Return the steps of the deltas after the last full version."""
        found: list[int] = []
        for step in reversed(self.steps()):
            if self.manifest(step).delta is None:
                break
            found.insert(0, step)
        return found

    def write(self, step: int, checkpoint: Checkpoint) -> Manifest:
        """See `Series.write`; raises CheckpointError, too, if another run has written here meanwhile."""
        if (wrong := self._not_of(checkpoint.settings[FEED]["run"])) is not None:
            self.unfollow()
            raise CheckpointError(
                wrong,
                where=self.url,
                why="two runs must not publish to one feed",
                fix="end one of them, or publish to another url",
            )
        with self._changing:  # what is being written looks like what a dead attempt has left
            manifest = super().write(step, checkpoint)
            self._since = [] if manifest.delta is None else [*self._since, step]
        if self._compacting.busy:
            return manifest
        self._report()
        if self._last is not None and len(self._since) >= self._full_every + FOLLOWERS_BEHIND:
            self._compacting.start(partial(self._compact, self._since[self._full_every - 1]))
        return manifest

    def _compact(self, step: int) -> None:
        dtype = self.manifest(step).settings[FEED]["dtype"]
        compact(self.place(step), weights=dtype, remove=False)  # somebody may be reading the delta
        with self._changing:
            self._since = [later for later in self._since if later > step]
            self.prune()

    def finish(self) -> None:
        """Wait until nothing is being written."""
        self._compacting.wait()
        self._report()

    def _report(self) -> None:
        if (error := self._compacting.failure()) is not None:
            self._notice(f"warning: a version was not made a full one, the next one will be full: {error}")
            self.unfollow()  # what it was to be made from may be damaged

    def _not_of(self, run: str) -> str | None:
        """Return what is wrong with the newest version if it is not one of this run."""
        newest = self.latest()
        found = None if newest is None else self.manifest(newest).settings.get(FEED)
        if newest is None or (isinstance(found, dict) and found.get("run") == run):
            return None
        return "another run publishes here" if found else "this folder has snapshots, and is no feed"
