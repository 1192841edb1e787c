"""Limits the event loop time that refused requests take, by delaying their answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter

SHARE = 0.1
"""Share of the event loop's time that refused requests may take in the long run."""
FREE_SECONDS = 0.02
"""Time that a burst of refused requests may take before answers wait: about a hundred requests."""
MOST_SECONDS = 1.0
"""Longest delay of an answer."""
_HTTP_SECONDS = 1e-4
"""Time that HTTP takes for a refused request, in addition to the measured time."""
_MOST_COST = 0.005
"""Maximum that a refusal counts; a longer time was spent waiting for other requests."""


class Refusals:
    """Limits the time that refused requests take.

    A client that sends invalid bodies as fast as it receives answers would take all the time of the event
    loop. So refusals accumulate a debt of time, which is paid back at a tenth of the clock. While the debt is
    more than `FREE_SECONDS`, the answer to a refused request waits until it is paid, at most `MOST_SECONDS`,
    and its connection is not read during the wait. All connections share one debt, since opening another
    connection costs a client nothing. Occasional refusals do not wait, unless other clients are refused all
    the time.

    Args:
        clock: returns seconds, default `perf_counter`.

    Attributes:
        waiting: number of delayed answers.
    """

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock, self._paid = clock, float("-inf")
        self.waiting = 0

    def owe(self, seconds: float) -> float:
        """Record a refusal that took some seconds; return how long its answer must wait."""
        now = self._clock()
        cost = (min(seconds, _MOST_COST) + _HTTP_SECONDS) / SHARE
        # Cap the debt at the longest delay: else one client could block the answers to all refused requests.
        self._paid = min(max(self._paid, now - FREE_SECONDS / SHARE) + cost, now + MOST_SECONDS)
        return max(0.0, self._paid - now)

    async def wait(self, seconds: float) -> None:
        """Record a refusal that took some seconds, and wait until its answer may be sent."""
        if pause := self.owe(seconds):
            self.waiting += 1
            try:
                await asyncio.sleep(pause)
            finally:
                self.waiting -= 1
