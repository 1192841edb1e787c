"""Simulated hosts, whose threads share cores, and barriers."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Generator

from satrap.errors import ConfigError

try:
    import simpy
except ImportError as error:
    raise ConfigError("a simulation needs SimPy", why=str(error), fix="pip install 'satrap[plan]'") from error

__all__ = ["Host", "Meeting", "simpy", "slow"]


class Host:
    """Cores on which any number of jobs run at once at equal speed (processor sharing).

    With n jobs on C cores a job advances min(1, C / n) seconds per second, divided by the `slow` factor of
    the busy cores, because cores share caches and memory.

    Args:
        env: the simulated time.
        cores: number of cores.
        slowdown: duration of a job with all cores busy, relative to a job alone, >= 1; default 1.

    Attributes:
        busy: core seconds used so far.
    """

    def __init__(self, env: simpy.Environment, cores: float, slowdown: float = 1.0) -> None:
        self._env, self._cores, self._slowdown = env, cores, slowdown
        self._jobs: list[tuple[float, int, simpy.Event]] = []  # ordered by the service at which each is done
        self._numbers = itertools.count()
        self._served = self._at = self.busy = 0.0
        self._armed = 0

    def work(self, seconds: float) -> simpy.Event:
        """Return the event of completing a job of some CPU seconds, measured alone."""
        self._advance()
        done = self._env.event()
        heapq.heappush(self._jobs, (self._served + seconds, next(self._numbers), done))
        self._arm()
        return done

    def _rate(self) -> float:
        n = len(self._jobs)
        return min(1.0, self._cores / n) / slow(self._slowdown, min(n, self._cores), self._cores)

    def _advance(self) -> None:
        passed, self._at = self._env.now - self._at, self._env.now
        if self._jobs:
            self._served += passed * self._rate()
            self.busy += passed * min(len(self._jobs), self._cores)

    def _arm(self) -> None:
        """Wake up when the next job is done; this replaces earlier alarms."""
        self._armed += 1
        if self._jobs:
            remaining = max(self._jobs[0][0] - self._served, 0.0) / self._rate()
            alarm = self._env.timeout(remaining, self._armed)
            alarm.callbacks.append(self._ring)

    def _ring(self, alarm: simpy.Event) -> None:
        if alarm.value != self._armed:
            return
        self._advance()
        self._served = max(self._served, self._jobs[0][0])  # rounding must not leave a job unfinished forever
        while self._jobs and self._jobs[0][0] <= self._served:
            heapq.heappop(self._jobs)[2].succeed()
        self._arm()


def slow(slowdown: float, busy: float, cores: float) -> float:
    """Return the slowdown of work with `busy` cores: 1 for one busy core, `slowdown` for all."""
    if cores <= 1:
        return 1.0
    return 1.0 + (slowdown - 1.0) * min(max((busy - 1.0) / (cores - 1.0), 0.0), 1.0)


class Meeting:
    """A repeated barrier.

    Args:
        env: the simulated time.
        size: number of participants.
        seconds: delay from the last arrival until all continue.
    """

    def __init__(self, env: simpy.Environment, size: int, seconds: float) -> None:
        self._env, self._size, self._seconds = env, size, seconds
        self._here, self._over = 0, env.event()

    def come(self) -> simpy.Event:
        """Return the event at which a participant that arrives now may continue."""
        over = self._over
        self._here += 1
        if self._here == self._size:
            self._here, self._over = 0, self._env.event()
            self._env.process(self._end(over))
        return over

    def _end(self, over: simpy.Event) -> Generator[simpy.Event, None, None]:
        yield self._env.timeout(self._seconds)
        over.succeed()
