"""Measures the time of each stage of the training steps."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

Item = TypeVar("Item")

STAGES = ("read", "lookup", "forward", "dense", "push")
"""`read`: waiting for a batch; `lookup`: waiting for rows; `forward`: pooling, model, loss; `dense`: backward
pass, sum over the workers, the network's step; `push`: passing on gradients of rows. The rest of a run is
bookkeeping, evaluation and saving. Work that was only queued on a GPU counts where it is waited for."""


class PhaseTimer:
    """The `seconds` that the training thread has spent in each stage."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Count the time inside the context."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] += time.perf_counter() - start

    def waited(self, stage: str, items: Iterable[Item]) -> Iterator[Item]:
        """Yield the items, and count the time spent waiting for each."""
        iterator = iter(items)
        while True:
            with self.timed(stage):
                item = list(itertools.islice(iterator, 1))
            if not item:
                return
            yield item[0]
