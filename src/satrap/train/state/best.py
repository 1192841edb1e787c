"""The best weights of a run, kept until training ends."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from satrap.checkpoint import Series
from satrap.errors import CheckpointError

Save = Callable[[Iterable[str]], tuple[str, CheckpointError | None]]


class Best:
    """Keeps the best weights and rows next to the snapshots of the run, else in a temporary folder.

    `place` is the URL of the best weights, None if none are kept; `step` is their step.
    """

    def __init__(self, series: Series | None = None) -> None:
        self._series = series
        self.place: str | None = None
        self.step = -1
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._said = ""

    def keep(self, save: Save, step: int) -> str:
        """Save the present weights and rows as the best.

        If no place is writable, `place` is None, and they count as the best until the next evaluation. For
        `save` see `TrainingState.save`. Return a warning unless they are next to the snapshots; empty if the
        last call returned the same.
        """
        place, error = save(self._places(step))
        self.place, self.step = place or None, step
        instead = (
            f"until the run ends they are in {place}" if place else "the next evaluation counts as the best"
        )
        previous, self._said = self._said, "" if place and error is None else instead
        if self._said in ("", previous):
            return ""
        why = "there is no temporary folder" if error is None else error.what
        return f"warning: the best weights could not be saved: {why}; {instead}"

    def _places(self, step: int) -> Iterator[str]:
        if self._series is not None:
            yield self._series.place(step, best=True)
        with suppress(OSError):
            self._folder = self._folder or tempfile.TemporaryDirectory(prefix="satrap-best-")
            yield str(Path(self._folder.name) / "best")

    @property
    def name(self) -> str | None:
        """Name of the best weights next to the snapshots, None if none are kept there."""
        folder, _, name = (self.place or "").rpartition("/")
        return name if self._series is not None and folder == self._series.url else None

    def resume(self, name: str | None, step: int) -> None:
        """Continue with the best weights that a snapshot names, or without any, if it names none."""
        self.place = f"{self._series.url}/{name}" if self._series is not None and name else None
        self.step = step

    def close(self) -> None:
        """Remove the temporary folder."""
        if self._folder is not None:
            self._folder.cleanup()
