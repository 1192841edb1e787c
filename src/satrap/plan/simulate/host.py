"""A host: cores that its threads share."""

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
    """Cores on which any number of jobs run at once, each as fast as the others (processor sharing).

    With n jobs on C cores a job advances min(1, C / n) seconds per second, divided by `slow` of the busy
    cores: they share caches and memory.

    Args:
        env: the simulated time.
        cores: how many.
        slowdown: how much longer a job takes while all cores are busy than alone, >= 1; default 1.

    Attributes:
        busy: core seconds used so far.
    """

    def __init__(self, env: simpy.Environment, cores: float, slowdown: float = 1.0) -> None:
        self._env, self._cores, self._slowdown = env, cores, slowdown
        self._jobs: list[tuple[float, int, simpy.Event]] = []  # by the service at which each is done
        self._numbers = itertools.count()
        self._served = self._at = self.busy = 0.0
        self._armed = 0

    def work(self, seconds: float) -> simpy.Event:
        """Return the event that a job of so many processor seconds, measured alone, is done."""
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
        """Wake up when the next job is done; earlier alarms no longer count."""
        self._armed += 1
        if self._jobs:
            left = max(self._jobs[0][0] - self._served, 0.0) / self._rate()
            alarm = self._env.timeout(left, self._armed)
            alarm.callbacks.append(self._ring)

    def _ring(self, alarm: simpy.Event) -> None:
        if alarm.value != self._armed:
            return
        self._advance()
        self._served = max(self._served, self._jobs[0][0])  # rounding must not leave a job for ever
        while self._jobs and self._jobs[0][0] <= self._served:
            heapq.heappop(self._jobs)[2].succeed()
        self._arm()


def slow(slowdown: float, busy: float, cores: float) -> float:
    """Return how much longer work takes while `busy` of the cores are: 1 for one, `slowdown` for all."""
    if cores <= 1:
        return 1.0
    return 1.0 + (slowdown - 1.0) * min(max((busy - 1.0) / (cores - 1.0), 0.0), 1.0)


class Meeting:
    """What all take part in, again and again: nobody goes on before the last has come.

    Args:
        env: the simulated time.
        size: how many take part.
        seconds: from the arrival of the last until all go on.
    """

    def __init__(self, env: simpy.Environment, size: int, seconds: float) -> None:
        self._env, self._size, self._seconds = env, size, seconds
        self._here, self._over = 0, env.event()

    def come(self) -> simpy.Event:
        """Return the event at which one that has come now may go on."""
        over = self._over
        self._here += 1
        if self._here == self._size:
            self._here, self._over = 0, self._env.event()
            self._env.process(self._end(over))
        return over

    def _end(self, over: simpy.Event) -> Generator[simpy.Event, None, None]:
        yield self._env.timeout(self._seconds)
        over.succeed()
