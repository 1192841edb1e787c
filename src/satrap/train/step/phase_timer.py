"""Measures the time of each stage of the training steps."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

Item = TypeVar("Item")

STAGES = ("read", "lookup", "forward", "dense", "push")
"""`read`: waiting for a batch; `lookup`: waiting for rows; `forward`: pooling, model, loss; `dense`: backward
pass, sum over the workers, the network's step; `push`: passing on gradients of rows. The rest of a run is
bookkeeping, evaluation and saving. Work that was only queued on a GPU counts where it is waited for."""

T = TypeVar("T")


class PhaseTimer:
    """The `seconds` that the training thread has spent in each stage."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self._inside = 0.0  # seconds of stages inside the current one, which do not count twice

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Count the time inside the context, except the time of stages inside it."""
        before, self._inside = self._inside, 0.0
        start = time.perf_counter()
        try:
            yield
        finally:
            elapsed = time.perf_counter() - start
            self.seconds[stage] += elapsed - self._inside
            self._inside = before + elapsed

    def counted(self, stage: str, function: Callable[[], T]) -> Callable[[], T]:
        """Return the function; the time of its calls counts to a stage."""

        def call() -> T:
            with self.timed(stage):
                return function()

        return call

    def waited(self, stage: str, items: Iterable[Item]) -> Iterator[Item]:
        """Yield the items, and count the time spent waiting for each."""
        iterator = iter(items)
        while True:
            with self.timed(stage):
                item = list(itertools.islice(iterator, 1))
            if not item:
                return
            yield item[0]
