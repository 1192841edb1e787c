"""The versions that a run publishes during training, for servers that score with them."""

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
"""Setting of a version: the format and run of its feed."""
FOLLOWERS_BEHIND = 10
"""Versions that a follower may be behind before it finds a full version instead of a delta."""
FEED_FORMAT = 1
"""Format of a feed; readers reject any other."""


def feed_settings(run: str, dtype: str, missing: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the setting `FEED` of a version that is cut now.

    Args:
        run: id of the run in the feed.
        dtype: number format of the weights of rows.
        missing: texts that mark a missing value; None: the default texts.
    """
    return {
        "format": FEED_FORMAT,
        "run": run,
        "dtype": dtype,
        "time": round(time.time(), 3),
        "cut": secrets.token_hex(8),  # a snapshot names the version cut with it by this id
        "missing": missing,
    }


def missing_texts(settings: Mapping[str, Any]) -> list[str] | None:
    """Return the texts that mark a missing value in a version of a feed; None: the default texts."""
    texts = settings[FEED].get("missing")
    return None if texts is None else [str(text) for text in texts]


def check_format(settings: Mapping[str, Any], where: str) -> None:
    """Raise `CheckpointError` if a checkpoint belongs to a feed with an unknown format."""
    if not is_feed(settings):
        return
    feed = settings[FEED]
    number = feed.get("format") if isinstance(feed, dict) else None
    if number != FEED_FORMAT:
        raise CheckpointError(
            f"this version of satrap cannot read feed format {str(number)[:20]}, only format {FEED_FORMAT}",
            where=where,
            fix="use the version of satrap that wrote the feed",
        )


def published_at(settings: Mapping[str, Any], where: str) -> float:
    """Return when a version was cut, in seconds since 1970; the current time for any other checkpoint.

    Raises:
        CheckpointError: see `check_format`.
    """
    check_format(settings, where)
    return float(settings[FEED]["time"]) if is_feed(settings) else time.time()


def is_feed(settings: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint is a version of a feed: weights only."""
    return settings.get(FEED) is not None


def check_resumable(settings: Mapping[str, Any], where: str) -> None:
    """Raise `CheckpointError` if a checkpoint is a version of a feed, from which training cannot resume."""
    if is_feed(settings):
        raise CheckpointError(
            "the checkpoint is a version of a feed, which holds only weights",
            where=where,
            why="training would continue without optimizer state",
            fix="load a snapshot or the trained model of the run; to score, use Predictor.load",
        )


class Feed(Series):
    """The versions of one run in one folder, in the layout of snapshots: a full version, then deltas.

    Only the run that started a feed may write to it. Servers that follow a feed read only deltas. For servers
    that start later, a background thread regularly turns a delta into a full version, using the earlier
    versions. It chooses a delta that followers have read by then.

    Args:
        url: folder or fsspec URL.
        keep: full versions to keep, each with the deltas after it, default 2.
        full_every: versions from one full version to the next, default 100.
        notice: called with a text if a delta could not be turned into a full version; the next version is
            then full.
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
        """Prepare to write from a step of a run; removes versions of later steps.

        Args:
            run: id of the run in the feed.
            step: step of the snapshot from which the run resumes.
            cut: id of the version with the rows of that snapshot. If it is the newest version, and its rows
                have the number format `dtype`, a delta can follow it.
            dtype: number format of the rows.

        Returns:
            Whether a delta can follow the newest version.

        Raises:
            ConfigError: the folder holds the versions of another run, or other checkpoints.
            CheckpointError: the folder cannot be listed, or its newest version cannot be read.
        """
        if (wrong := self._not_of(run)) is not None:
            raise ConfigError(
                wrong,
                where=self.url,
                why="a server that follows the feed would get the rows of both runs",
                fix="publish to another url, or remove the folder if it is no longer needed",
            )
        for late in reversed([written for written in self.steps() if written > step]):
            self._remove(name_of(late))
        if cut and (newest := self.latest()) is not None:
            manifest = self.manifest(newest)
            feed = manifest.settings[FEED]
            if (feed.get("cut"), feed["dtype"]) == (cut, dtype):
                self._last = name_of(newest), manifest
                self._since = self._after_full()
                return True
        return False

    def _after_full(self) -> list[int]:
        """Return the steps of the deltas after the last full version."""
        deltas: list[int] = []
        for step in reversed(self.steps()):
            if self.manifest(step).delta is None:
                break
            deltas.insert(0, step)
        return deltas

    def write(self, step: int, checkpoint: Checkpoint) -> Manifest:
        """See `Series.write`; also raises CheckpointError if another run has written to the folder since."""
        if (wrong := self._not_of(checkpoint.settings[FEED]["run"])) is not None:
            self.unfollow()
            raise CheckpointError(
                wrong,
                where=self.url,
                why="two runs must not publish to the same feed",
                fix="stop one of the runs, or publish to another url",
            )
        with self._changing:  # `prune` would remove an unfinished version like a failed attempt
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
        compact(self.place(step), weights=dtype, remove=False)  # a follower may be reading the delta
        with self._changing:
            self._since = [later for later in self._since if later > step]
            self.prune()

    def finish(self) -> None:
        """Wait until no version is being written."""
        self._compacting.wait()
        self._report()

    def _report(self) -> None:
        if (error := self._compacting.failure()) is not None:
            self._notice(
                f"warning: a delta was not turned into a full version, so the next version is full: {error}"
            )
            self.unfollow()  # the versions it builds on may be damaged

    def _not_of(self, run: str) -> str | None:
        """Return the problem if the newest version does not belong to this run, else None."""
        newest = self.latest()
        feed = None if newest is None else self.manifest(newest).settings.get(FEED)
        if newest is None or (isinstance(feed, dict) and feed.get("run") == run):
            return None
        return "another run publishes to this folder" if feed else "this folder holds snapshots, not a feed"
