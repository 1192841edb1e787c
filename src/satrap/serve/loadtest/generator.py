"""An open loop: requests are sent when they are due, and each answer's time counts from then."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from satrap.serve.app import STEP, TIMING
from satrap.serve.loadtest.connection import Connection, Reply, Target

Seconds = npt.NDArray[np.float64]

NO_ANSWER, TIMEOUT = "no answer", "timeout"
"""What stands for a status: the connection was refused or lost; the answer took too long."""


def arrivals(rate: float, seconds: float, seed: int) -> Seconds:
    """Return when requests are due, float64[n] in seconds, ascending: a Poisson process of a rate."""
    random = np.random.default_rng(seed)
    count = int(rate * seconds + 8 * (rate * seconds) ** 0.5 + 8)
    due = np.cumsum(random.exponential(1 / rate, count))
    return due[due < seconds]


@dataclass(slots=True)
class Outcome:
    """What became of a request; times are in seconds since the first one could be due.

    Attributes:
        body: number of its body.
        due: when it had to be sent.
        sent: when it was; later if all connections were busy, or the generator was slow.
        done: when its answer was there, or its failure.
        status: HTTP status as text, `NO_ANSWER` or `TIMEOUT`.
        step: training step that the answer names; -1: none.
        newest: largest step of the answers that were there when it was sent.
        stages: stage -> seconds, as the server says.
        content: what `read` made of the answer; None of a failure.
        waited: whether all connections were busy when it was due.
    """

    body: int
    due: float
    sent: float = 0.0
    done: float = 0.0
    status: str = NO_ANSWER
    step: int = -1
    newest: int = -1
    stages: dict[str, float] | None = None
    content: Any = None
    waited: bool = False

    @property
    def answered(self) -> bool:
        """Whether there are scores."""
        return self.status == "200"

    @property
    def latency(self) -> float:
        """Seconds from when it was due."""
        return self.done - self.due


class Generator:
    """Sends requests to a server at given times; `run` once, in an event loop.

    Args:
        target: the server.
        requests: whole HTTP requests; they take turns.
        due: when to send, see `arrivals`.
        connections: most connections. Where all are busy, requests wait for one, and their time runs.
        timeout: seconds after which a request that was sent has failed.
        read: makes of the body of an answer what `Outcome.content` keeps.
    """

    def __init__(
        self,
        target: Target,
        requests: Sequence[bytes],
        due: Seconds,
        *,
        connections: int = 64,
        timeout: float = 10.0,
        read: Callable[[bytes], Any] = lambda _: None,
    ) -> None:
        self._target, self._requests, self._timeout, self._read = target, requests, timeout, read
        self.outcomes = [Outcome(i % len(requests), float(at)) for i, at in enumerate(due)]
        self._room, self._newest, self._left = connections, -1, len(self.outcomes)
        self._idle: list[Connection] = []
        self._waiting: deque[Outcome] = deque()
        self._begun = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping, self._ended = threading.Event(), asyncio.Event()

    async def run(self) -> list[Outcome]:
        """Send all requests; return what became of them, in the order in which they were due."""
        loop = asyncio.get_running_loop()
        self._begun = perf_counter()
        # An event loop's clock ticks in milliseconds; a thread that sleeps wakes within a tenth of one.
        pacer = threading.Thread(target=self._pace, args=(loop,), name="satrap-arrivals", daemon=True)
        pacer.start()
        try:
            if self._left:
                await self._ended.wait()
        finally:
            self._stopping.set()
            for connection in self._idle:
                connection.close()
        return self.outcomes

    def _now(self) -> float:
        return perf_counter() - self._begun

    def _pace(self, loop: asyncio.AbstractEventLoop) -> None:
        with suppress(RuntimeError):  # the loop has been closed: somebody has interrupted it
            for outcome in self.outcomes:
                if (pause := outcome.due - self._now()) > 0:
                    time.sleep(pause)
                if self._stopping.is_set():
                    return
                loop.call_soon_threadsafe(self._send, outcome)

    def _send(self, outcome: Outcome) -> None:
        if not self._idle and not self._room:
            outcome.waited = True
            self._waiting.append(outcome)
            return
        connection = self._idle.pop() if self._idle else None
        self._room -= connection is None
        task = asyncio.ensure_future(self._exchange(outcome, connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _exchange(self, outcome: Outcome, connection: Connection | None) -> None:
        """Send a request and those that wait for its connection, until none does."""
        following: Outcome | None = outcome
        while following is not None:
            connection = await self._one(following, connection)
            self._left -= 1
            following = self._waiting.popleft() if self._waiting else None
        if connection is None:
            self._room += 1
        else:
            self._idle.append(connection)
        if not self._left:
            self._ended.set()

    async def _one(self, outcome: Outcome, connection: Connection | None) -> Connection | None:
        """Send a request; return the connection if another one may follow."""
        try:
            async with asyncio.timeout(self._timeout):
                if connection is None or not connection.usable:
                    connection = await self._target.connect()
                outcome.sent, outcome.newest = self._now(), self._newest
                reply = await connection.ask(self._requests[outcome.body])
            self._take(outcome, reply)
        except TimeoutError:
            outcome.status = TIMEOUT
        except OSError:
            outcome.status = NO_ANSWER
        outcome.done = self._now()
        if connection is not None and (not connection.usable or outcome.status == TIMEOUT):
            connection.close()
            return None
        return connection

    def _take(self, outcome: Outcome, reply: Reply) -> None:
        outcome.status = str(reply.status)
        step = reply.headers.get(STEP.lower(), "")
        if step.isdecimal():
            outcome.step = int(step)
            self._newest = max(self._newest, outcome.step)
        outcome.stages = stages_of(reply.headers.get(TIMING.lower(), ""))
        if outcome.answered:
            outcome.content = self._read(reply.body)


def stages_of(timing: str) -> dict[str, float]:
    """Return stage -> seconds of a `Server-Timing` header; what it does not understand is left out."""
    found = dict[str, float]()
    for one in timing.split(","):
        name, _, rest = one.strip().partition(";dur=")
        with suppress(ValueError):
            found[name] = float(rest.partition(";")[0]) / 1000
    return found
