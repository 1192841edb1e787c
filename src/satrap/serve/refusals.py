"""Keeps what refused requests take from the others small: their answers wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter

SHARE = 0.1
"""Of the event loop's time, what refused requests may take on and on."""
FREE_SECONDS = 0.02
"""Time that refused requests may take at once before an answer waits: some hundred of them."""
MOST_SECONDS = 1.0
"""Longest wait of an answer."""
_HTTP_SECONDS = 1e-4
"""What a refused request takes beside what its refusal was measured to take: HTTP."""
_MOST_COST = 0.005
"""A refusal counts no more: if it took longer, it waited for others."""


class Refusals:
    """Says how long the answer to a refused request waits.

    A client may send bodies that are refused as fast as the answers come, and would take all the time of the
    event loop. So the time that refusals take is paid back at a tenth of the clock: who is refused while more
    than `FREE_SECONDS` are owed waits for the answer until they are paid, at most `MOST_SECONDS`, and a
    connection is read no further meanwhile. All connections owe together, since to open another one costs a
    client nothing. A client that is refused now and then never waits, unless others are refused all the time.

    Args:
        clock: seconds, default `perf_counter`.

    Attributes:
        waiting: number of answers that wait.
    """

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock, self._paid = clock, float("-inf")
        self.waiting = 0

    def owe(self, seconds: float) -> float:
        """Note a refusal that took some seconds; return how long its answer waits."""
        now = self._clock()
        cost = (min(seconds, _MOST_COST) + _HTTP_SECONDS) / SHARE
        # What nobody can be made to wait for is not owed either: else one client could stop all refusals.
        self._paid = min(max(self._paid, now - FREE_SECONDS / SHARE) + cost, now + MOST_SECONDS)
        return max(0.0, self._paid - now)

    async def wait(self, seconds: float) -> None:
        """Note a refusal that took some seconds, and wait until its answer may be sent."""
        if pause := self.owe(seconds):
            self.waiting += 1
            try:
                await asyncio.sleep(pause)
            finally:
                self.waiting -= 1
