"""An open-loop load generator: sends each request when it is due, and counts its latency from then."""

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

from satrap.serve.http.app import STEP, TIMING
from satrap.serve.loadtest.connection import HttpConnection, HttpReply, TargetServer

Seconds = npt.NDArray[np.float64]

NO_ANSWER, TIMEOUT = "no answer", "timeout"
"""Used instead of an HTTP status: the connection was refused or lost; the answer took too long."""


def arrivals(rate: float, seconds: float, seed: int) -> Seconds:
    """Return when requests are due, float64[n] in seconds, ascending: a Poisson process with this rate."""
    random = np.random.default_rng(seed)
    count = int(rate * seconds + 8 * (rate * seconds) ** 0.5 + 8)
    due = np.cumsum(random.exponential(1 / rate, count))
    return due[due < seconds]


@dataclass(slots=True)
class RequestOutcome:
    """The outcome of a request; times are in seconds since the start of the test.

    Attributes:
        body: number of the request's body.
        due: when the request was due.
        sent: when it was sent; later if all connections were busy or the generator was slow.
        done: when it was answered or had failed.
        status: HTTP status as text, `NO_ANSWER` or `TIMEOUT`.
        step: training step that the answer names; -1: none.
        newest: largest step of all answers received before the request was sent.
        stages: stage -> seconds, as reported by the server.
        content: result of `read` for the answer; None if the request failed.
        waited: whether all connections were busy when the request was due.
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
        """Whether the answer has scores."""
        return self.status == "200"

    @property
    def latency(self) -> float:
        """Seconds from when the request was due until its answer."""
        return self.done - self.due


class Generator:
    """Sends requests to a server at given times; `run` once, in an event loop.

    Args:
        target: the server.
        requests: complete HTTP requests, sent in turn.
        due: when to send, see `arrivals`.
        connections: maximum number of connections. Waiting for a free one counts as latency.
        timeout: seconds after which a sent request has failed.
        read: converts the body of an answer to `RequestOutcome.content`.
    """

    def __init__(
        self,
        target: TargetServer,
        requests: Sequence[bytes],
        due: Seconds,
        *,
        connections: int = 64,
        timeout: float = 10.0,
        read: Callable[[bytes], Any] = lambda _: None,
    ) -> None:
        self._target, self._requests, self._timeout, self._read = target, requests, timeout, read
        self.outcomes = [RequestOutcome(i % len(requests), float(at)) for i, at in enumerate(due)]
        self._room, self._newest, self._left = connections, -1, len(self.outcomes)
        self._idle: list[HttpConnection] = []
        self._waiting: deque[RequestOutcome] = deque()
        self._begun = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping, self._ended = threading.Event(), asyncio.Event()

    async def run(self) -> list[RequestOutcome]:
        """Send all requests; return their outcomes in the order in which they were due."""
        loop = asyncio.get_running_loop()
        self._begun = perf_counter()
        # The event loop's timers have a resolution of 1 ms; a sleeping thread wakes up within 0.1 ms.
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
        with suppress(RuntimeError):  # the event loop is closed: the test was interrupted
            for outcome in self.outcomes:
                if (pause := outcome.due - self._now()) > 0:
                    time.sleep(pause)
                if self._stopping.is_set():
                    return
                loop.call_soon_threadsafe(self._send, outcome)

    def _send(self, outcome: RequestOutcome) -> None:
        if not self._idle and not self._room:
            outcome.waited = True
            self._waiting.append(outcome)
            return
        connection = self._idle.pop() if self._idle else None
        self._room -= connection is None
        task = asyncio.ensure_future(self._exchange(outcome, connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _exchange(self, outcome: RequestOutcome, connection: HttpConnection | None) -> None:
        """Send a request, then waiting requests on the same connection until none is left."""
        following: RequestOutcome | None = outcome
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

    async def _one(self, outcome: RequestOutcome, connection: HttpConnection | None) -> HttpConnection | None:
        """Send one request; return its connection if that can be reused."""
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

    def _take(self, outcome: RequestOutcome, reply: HttpReply) -> None:
        outcome.status = str(reply.status)
        step = reply.headers.get(STEP.lower(), "")
        if step.isdecimal():
            outcome.step = int(step)
            self._newest = max(self._newest, outcome.step)
        outcome.stages = stages_of(reply.headers.get(TIMING.lower(), ""))
        if outcome.answered:
            outcome.content = self._read(reply.body)


def stages_of(timing: str) -> dict[str, float]:
    """Return stage -> seconds of a `Server-Timing` header; entries without a valid duration are omitted."""
    stages = dict[str, float]()
    for entry in timing.split(","):
        name, _, rest = entry.strip().partition(";dur=")
        with suppress(ValueError):
            stages[name] = float(rest.partition(";")[0]) / 1000
    return stages
