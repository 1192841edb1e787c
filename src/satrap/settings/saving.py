"""Where and how often a run is saved, and published for servers that score with it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from satrap.errors import ConfigError
from satrap.runtime.arguments import Seconds, checked


def as_warning(text: str) -> None:
    """Warn about a failed write: the default of plans without a `notice`."""
    warnings.warn(text, RuntimeWarning, stacklevel=3)


@checked()
@dataclass(frozen=True, slots=True)
class Publishing:
    """Where and how often `Trainer.fit` publishes a version of the model, for servers that follow the run.

    ```python
    feed = satrap.train.Publishing("s3://models/ads/feed", every=5.0)
    trainer.fit(data, checkpoint=satrap.train.Checkpointing("runs/x/checkpoints", publish=feed))
    ```

    A version has weights only: of the network, and of all rows or of the rows that changed since the previous
    version. So it is smaller than a snapshot, and training cannot be resumed from it. Every version is of
    exactly one step. A version that cannot be written does not end training: `notice` is called, and the next
    version includes its contents. `Predictor.load(url)` reads the newest version.

    Args:
        url: folder (relative to the current one) or URL of the feed; default `feed` in the run folder. Only
            one run may publish to a feed.
        every: time between two versions, for example 5s. Default: 5s with a url, else nothing is published.
        full_every: number of versions from one with all rows to the next. The versions between hold the
            changes since the previous version.
        dtype: number format of rows.
        keep: number of versions with all rows to keep, each with the versions up to the next one.
        notice: called with a text about versions that could not be written; default a RuntimeWarning.
        missing: texts that stand for a missing value, for servers that know only the feed; default as in
            `satrap.data.read`.

    In Python, `url` is required, and `every` is in seconds. With several workers it takes a little longer if
    their steps become slower.

    Raises:
        ConfigError: a number is too small, or the format is unknown.
    """

    url: str
    every: Seconds = 5.0
    full_every: int = 100
    dtype: Literal["float32", "float16"] = "float32"
    keep: int = 2
    notice: Callable[[str], None] = as_warning
    missing: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if not 0 < self.every < float("inf"):
            raise ConfigError(f"publish: every must be a number of seconds above 0, got {self.every}")
        for name in ("full_every", "keep"):
            if getattr(self, name) < 1:
                raise ConfigError(f"publish: {name} must be >= 1, got {getattr(self, name)}")


@checked()
@dataclass(frozen=True, slots=True)
class Checkpointing:
    """Where and how often `Trainer.fit` writes snapshots to resume from.

    ```python
    plan = satrap.train.Checkpointing("runs/x/checkpoints", every_steps=1000)
    trainer.fit(data, epochs=2, checkpoint=plan)                  # killed at some point
    same_trainer.fit(data, epochs=2, checkpoint=plan, resume=True)
    ```

    The second call continues from the newest snapshot. In one process, and in `sync` with several workers,
    the result equals the result of an uninterrupted run, to the bit. A failed save does not end training:
    older snapshots stay, `notice` is called, and the next save is tried.

    Args:
        url: folder (relative to the current one) or URL of snapshots; default `checkpoints` in the run
            folder.
        every_steps: steps between two snapshots; default: one only when Ctrl-C or SIGTERM stops the run.
        keep: number of full snapshots to keep, each with its deltas; default 2.
        notice: called with a text about failed saves; default a RuntimeWarning.
        delta_every_steps: steps between two deltas. A delta holds the changes since the previous snapshot.
            Default: no deltas.
        publish: where and how often versions are published for servers that score with them; None: never.

    In Python, `url` is required. After `resume`, deltas follow the snapshot that was read.
    """

    url: str
    every_steps: int | None = None
    keep: int = 2
    notice: Callable[[str], None] = as_warning
    delta_every_steps: int | None = None
    publish: Publishing | None = None

    def __post_init__(self) -> None:
        for name in ("every_steps", "keep", "delta_every_steps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"checkpoint: {name} must be >= 1, got {value}")
