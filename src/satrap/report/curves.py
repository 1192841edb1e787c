"""TensorBoard curves, if the package tensorboard is installed."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from satrap.runtime.formatting import quality
from satrap.train.progress.observer import Observer, Progress, Result
from satrap.train.progress.progress_line import window


def curves_available() -> bool:
    """Return True if the package tensorboard is installed (`pip install satrap[tensorboard]`)."""
    return importlib.util.find_spec("tensorboard") is not None


class Curves(Observer):
    """Writes train, store and validation curves over steps for `tensorboard --logdir`.

    A point is written every `every` steps. If the disk is full, `notice` is called with a warning, and
    training continues without curves.
    """

    def __init__(
        self, folder: Path, *, every: int = 20, notice: Callable[[str], None] = lambda _: None
    ) -> None:
        self.folder, self.every, self._notice = folder, every, notice
        self._writer: Any = None

    def started(self, progress: Progress) -> None:
        """Open the event file."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # from tensorboard's imports
            from torch.utils.tensorboard import SummaryWriter
        # A resumed run drops the points after its snapshot.
        purge = progress.step + 1 if progress.step else None
        with self._written():
            self._writer = SummaryWriter(str(self.folder), purge_step=purge)

    def step(self, progress: Progress) -> None:
        """Add a point to the training curves every `every` steps."""
        if progress.step % self.every == 0:
            self._add("train", {"loss": progress.loss, **window(progress)}, progress)
            self._add("speed", {"samples_per_second": progress.samples_per_second}, progress)
            self._add("store", {"rows": progress.rows, "bytes": progress.memory_bytes}, progress)

    def evaluated(self, metrics: Mapping[str, float], progress: Progress) -> None:
        """Add a point to the validation curves."""
        self._add("validation", quality(metrics), progress)

    def event_hour(self, hour: str, metrics: Mapping[str, float], progress: Progress) -> None:
        """Add a point to the curves by event hour."""
        self._add("event_hour", quality(metrics), progress)

    def finished(self, result: Result) -> None:
        """Close the event file."""
        self.close()

    def close(self) -> None:
        """Write buffered points; safe to call twice."""
        if self._writer is not None:
            with self._written():
                self._writer.close()
            self._writer = None

    def _add(self, group: str, values: Mapping[str, float], progress: Progress) -> None:
        for key, value in values.items():
            if self._writer is not None:
                with self._written():
                    self._writer.add_scalar(f"{group}/{key}", value, progress.step)

    @contextmanager
    def _written(self) -> Iterator[None]:
        """If the curves cannot be written, stop writing them but let the run continue."""
        try:
            yield
        except OSError as error:
            self._writer = None
            self._notice(f"warning: TensorBoard curves end here, because they cannot be written: {error}")
