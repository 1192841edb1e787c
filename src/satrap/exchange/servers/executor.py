"""The thread of a shard that recovers it, then executes requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

from satrap.errors import SatrapError
from satrap.exchange.servers.turns import Job, Turns

_TICK = 0.2
"""Seconds between looks at requests that wait too long."""


class Executor:
    """Runs the requests of all clients, one after another, in a thread of its own.

    Args:
        turns: what executes them; touched by this thread only.
        first: called in the thread before the first request.
        last: called in the thread after the last one.

    Attributes:
        error: what `first` raised; the thread has then ended.
    """

    def __init__(self, turns: Turns, first: Callable[[], None], last: Callable[[], None]) -> None:
        self._turns, self._first, self._last = turns, first, last
        self.error: SatrapError | None = None
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="satrap-shard", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def submit(self, job: Job) -> None:
        """Execute a job after those submitted before."""
        self._jobs.put(job)

    def stop(self) -> None:
        """End after the jobs submitted before."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._first()
            self._serve()
        except SatrapError as error:
            self.error = error
        finally:
            self._last()

    def _serve(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=_TICK)
            except Empty:
                self._turns.expire(time.monotonic())
                continue
            if job is None:
                return
            self._turns.take(job)
