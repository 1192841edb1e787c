"""The versions that a run publishes for those who score with it while it trains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from satrap.checkpoint.manifest import Manifest
from satrap.checkpoint.series import Series, name_of
from satrap.checkpoint.snapshot import Checkpoint
from satrap.errors import CheckpointError, ConfigError

FEED = "feed"
"""Setting of a version: what kind of feed it belongs to, and of which run."""
FEED_FORMAT = 1
"""Version of what a feed holds; readers refuse any other."""


def feed_settings(run: str, dtype: str) -> dict[str, Any]:
    """Return the setting `FEED` of a version: of a run, with weights of rows in a number format."""
    return {"format": FEED_FORMAT, "run": run, "dtype": dtype}


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
    """The versions of one run at one place, in the layout of snapshots: full ones, and deltas after each.

    Only the run that began a feed may write to it.
    """

    def take_over(self, run: str, step: int) -> None:
        """Prepare to write from a step of a run on: versions of later steps are removed.

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
        return super().write(step, checkpoint)

    def _not_of(self, run: str) -> str | None:
        """Return what is wrong with the newest version if it is not one of this run."""
        newest = self.latest()
        found = None if newest is None else self.manifest(newest).settings.get(FEED)
        if newest is None or (isinstance(found, dict) and found.get("run") == run):
            return None
        return "another run publishes here" if found else "this folder has snapshots, and is no feed"
