"""The progress line: live on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from satrap.runtime.formatting import METRIC_NAMES, decimals, duration, metrics_line, quality, size
from satrap.train.progress.observer import Observer, Progress, Result

REFRESH_SECONDS = 0.25
"""Time between two updates of the live line."""


class ProgressLine(Observer):
    """Shows a run on a stream, default standard error; a context manager, so that it cleans up the terminal.

    ```python
    with ProgressLine() as line:
        trainer.fit(train, observers=[line])
    ```

    On a terminal it is a live line. Elsewhere lines are printed, one in `plain_seconds` and one per epoch.
    """

    def __init__(self, stream: TextIO | None = None, *, plain_seconds: float = 10.0) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._console = Console(file=self._stream, highlight=False)
        self._live: Live | None = None
        self._every = REFRESH_SECONDS if self._console.is_terminal else plain_seconds
        self._shown_at = 0.0
        self._epoch: int | None = None

    def __enter__(self) -> ProgressLine:
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def say(self, text: str) -> None:
        """Print a line that stays."""
        if self._live is not None:
            self._console.print(Text(text))
        else:
            print(text, file=self._stream, flush=True)

    def started(self, progress: Progress) -> None:
        """Start the clock of the plain lines."""
        self._shown_at, self._epoch = time.monotonic(), progress.epoch

    def step(self, progress: Progress) -> None:
        """Update the line when it is time."""
        now = time.monotonic()
        new_epoch = self._epoch not in (None, progress.epoch)
        self._epoch = progress.epoch
        if now - self._shown_at >= self._every or new_epoch:
            self._shown_at = now
            self._show(progress_line(progress, self._console.width if self._live is not None else None))

    def evaluated(self, metrics: Mapping[str, float], progress: Progress) -> None:
        """Print the validation metrics."""
        if self._live is None:
            self._show(progress_line(progress))
        self.say(f"epoch {progress.epoch + 1} validation: {metrics_line(metrics)}")
        self._shown_at, self._epoch = time.monotonic(), None

    def event_hour(self, hour: str, metrics: Mapping[str, float], progress: Progress) -> None:
        """Print the metrics of an hour of events."""
        self.say(f"events of {hour}: {metrics_line(metrics)}")

    def finished(self, result: Result) -> None:
        """Print the totals."""
        reason = ", ended early: validation no longer improves" if result.stopped == "patience" else ""
        self.say(
            f"{result.steps:,} steps, {result.samples:,} samples in {result.seconds:.1f} s: "
            f"{result.samples_per_second:,.0f} samples/s{reason}"
        )
        if epoch := kept_pass(result):
            self.say(f"kept: the weights of epoch {epoch} of {len(result.history)}")
        if result.refused:
            share = f"{result.refused:,} of {result.steps:,} steps ({result.refused / result.steps:.1%})"
            self.say(
                f"warning: {share} were refused: their loss or a gradient was not finite, so nothing was "
                "learnt from their samples"
            )

    def _show(self, text: str) -> None:
        if self._live is None:
            self.say(text)
        else:
            self._live.update(Text(text), refresh=True)


def kept_pass(result: Result) -> int:
    """Return the epoch after which the kept weights were evaluated, from 1; 0 if none was evaluated."""
    kept = quality(result.metrics)
    same = (number for number, metrics in enumerate(result.history, 1) if _equal(quality(metrics), kept))
    return next(same, 0)


def _equal(a: Mapping[str, float], b: Mapping[str, float]) -> bool:
    """Return whether metrics are equal, with NaN equal to NaN."""
    return repr(sorted(a.items())) == repr(sorted(b.items()))


class LiveLine(ProgressLine):
    """The live line of one run after another; it prints no results."""

    def step(self, progress: Progress) -> None:
        """Update the line on a terminal when it is time."""
        if self._live is not None:
            super().step(progress)

    def event_hour(self, hour: str, metrics: Mapping[str, float], progress: Progress) -> None:
        """Print nothing."""

    def evaluated(self, metrics: Mapping[str, float], progress: Progress) -> None:
        """Print nothing."""

    def finished(self, result: Result) -> None:
        """Print nothing."""


def window(progress: Progress) -> dict[str, float]:
    """Return the metrics of the last training samples, without NaN."""
    values = {name: getattr(progress, name) for name in ("auc", "accuracy", "rmse")}
    return {name: value for name, value in values.items() if not math.isnan(value)}


Part = tuple[int, str]
"""A part of the progress line; parts with higher numbers are dropped first when space is short."""


def _traffic(progress: Progress) -> list[Part]:
    """Return the traffic between the worker and the shards, in a few words."""
    stages = progress.stage_seconds
    waited = stages.get("lookup", 0.0) / max(sum(stages.values()), 1e-9)
    sent, received = progress.sent_bytes_per_sample, progress.received_bytes_per_sample
    return [
        (6, f"wait {waited:.0%}"),
        (9, f"push {1000 * progress.push_seconds:.1f} ms"),
        (10, f"{sent + received:,.0f} B/sample"),
        (11, f"{progress.distinct_ratio:.0%} distinct"),
        (8, f"shards {' '.join(f'{busy:.0%}' for busy in progress.shard_busy)} busy"),
    ]


def progress_line(progress: Progress, width: int | None = None) -> str:
    """Return one line: position, speed, loss, metrics so far, rows, staleness, memory, traffic, time left.

    With a width in characters, the least important parts are dropped, so that the line fits.
    """
    total = progress.total_samples
    done = f" {min(progress.samples / total, 1):4.0%}" if total else f" {progress.samples:,} samples"
    parts = [
        (0, f"epoch {progress.epoch + 1} step {progress.step:,}{done}"),
        (3, f"{progress.samples_per_second:,.0f} samples/s"),
        (0, f"loss {decimals(progress.loss)}"),
        *((0, f"{METRIC_NAMES[name]} {decimals(value)}") for name, value in window(progress).items()),
        (4, f"{progress.rows:,} rows"),
        (
            7,
            f"staleness {progress.staleness}"
            + (f" (others {progress.others_missed:.1f})" if progress.others_missed else ""),
        ),
        (4, size(progress.memory_bytes)),
    ]
    if progress.shard_rows:
        parts += _traffic(progress)
    if progress.refused:
        parts.append((1, f"{progress.refused:,} steps refused"))
    if progress.eta_seconds is not None:
        parts.append((2, f"{duration(progress.eta_seconds)} left"))
    while width is not None and len(_joined(parts)) > width and max(parts)[0]:
        parts.remove(max(parts))
    return _joined(parts)


def _joined(parts: list[Part]) -> str:
    return " | ".join(text for _, text in parts)
