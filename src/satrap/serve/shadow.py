"""A second model that scores requests after they are answered, to be compared with the served one."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import orjson

from satrap.serve.loadtest.connection import Connection, Reply, Target
from satrap.serve.protocols import arrow
from satrap.serve.protocols.json import KIND
from satrap.serve.request import ScoreRequest
from satrap.serve.scorer import Answer

UNDER_WAY = 8
"""Most requests that the shadow is asked at a time; of more, it is not asked."""
WINDOW = 100_000
"""Items that the means are over: those before fade."""
ANSWER_SECONDS = 10.0
END_SECONDS = 10.0
"""How long to wait for an answer, and for the process to end."""
BEHIND = (503, 504)


@dataclass(slots=True)
class Compared:
    """One prediction, over the last items.

    Attributes:
        items: that count, at most `WINDOW`.
        served, shadow: the means.
        difference: mean of the absolute difference.
    """

    items: int = 0
    served: float = 0.0
    shadow: float = 0.0
    difference: float = 0.0

    def add(self, served: Any, shadow: Any) -> None:
        """Take the predictions of some items into account, float[n] each."""
        self.items = min(self.items + len(served), max(WINDOW, len(served)))
        share = len(served) / self.items
        self.served += share * (float(served.mean()) - self.served)
        self.shadow += share * (float(shadow.mean()) - self.shadow)
        self.difference += share * (float(np.abs(shadow - served).mean()) - self.difference)


@dataclass(slots=True)
class ShadowStatistics:
    """Counters of a `Shadow`.

    Attributes:
        step: training step of its last answer; -1: none.
        answers: requests that it has scored.
        dropped: requests that it was not asked, because it was not ready or behind.
        failed: requests that it could not score.
        predictions: name -> how its predictions differ.
    """

    step: int = -1
    answers: int = 0
    dropped: int = 0
    failed: int = 0
    predictions: dict[str, Compared] = field(default_factory=dict)


class Shadow:
    """Asks a server in a process of its own, at the lowest priority, what it would have answered.

    The process, not a thread: a thread would hold the interpreter while a request waits. What this process
    does for a comparison comes after the answer has been sent, in the event loop.

    ```python
    with Shadow(["serve", "runs/candidate", "--listen", "127.0.0.1:0"], say=print) as shadow:
        response.background = BackgroundTask(shadow.offer, request, body, kind, answer)
    ```

    Args:
        arguments: of the command `satrap` that serves it.
        headers: that it wants in each request.
        say: called with each line that it prints.

    Attributes:
        statistics: counters, which any thread may read.
        target: where it answers; None: it is not ready.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        headers: dict[str, str] | None = None,
        *,
        say: Callable[[str], object] = lambda _: None,
    ) -> None:
        self.statistics = ShadowStatistics()
        self.target: Target | None = None
        self._arguments, self._headers, self._say = list(arguments), headers, say
        self._idle: list[Connection] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "satrap.cli", *self._arguments, "--stop-at-eof"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        with suppress(OSError):  # threads that it starts later inherit it
            os.setpriority(os.PRIO_PROCESS, self._process.pid, 19)
        self._reader = threading.Thread(target=self._read, name="satrap-shadow", daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._process.wait()
        self._reader.join()

    async def disconnect(self) -> None:
        """Wait for what is being compared, then close the connections; at the end of the event loop."""
        await asyncio.gather(*self._tasks)
        while self._idle:
            self._idle.pop().close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                name, _, text = line.strip().partition(" ")
                if name == "scores":
                    self.target = Target.of(text.strip().removesuffix("/v1/score"), self._headers)
                self._say(f"shadow: {line.rstrip()}")
        self.target = None

    async def offer(self, request: ScoreRequest, body: bytes, kind: str, answer: Answer) -> None:
        """Have a request scored that has been answered; it is not waited for.

        Args:
            request: that was answered; one that asks for a step is not compared.
            body: of the request.
            kind: media type of the body, of /v1/score; any other is sent as Arrow.
            answer: to it.
        """
        if request.step is not None:
            return
        if self.target is None or len(self._tasks) >= UNDER_WAY:
            self.statistics.dropped += 1
            return
        if kind not in (KIND, arrow.KIND):
            body, kind = arrow.pack(request, answer.model.columns), arrow.KIND
        task = asyncio.ensure_future(self._compare(self.target, body, kind, answer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _compare(self, target: Target, body: bytes, kind: str, answer: Answer) -> None:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                reply = await self._ask(target, target.post("/v1/score", body, kind))
        except OSError:  # a time-out is one, too
            self.statistics.failed += 1
            return
        if reply.status in BEHIND:
            self.statistics.dropped += 1
            return
        found = _predictions(reply, kind) if reply.status == 200 else {}
        common = [name for name in answer.model.outputs if len(found.get(name, ())) == len(answer.scores)]
        if not common:
            self.statistics.failed += 1
            return
        for name in common:
            served = answer.scores[:, answer.model.outputs.index(name)]
            self.statistics.predictions.setdefault(name, Compared()).add(served, found[name])
        self.statistics.answers += 1
        self.statistics.step = int(reply.headers.get("satrap-step", "-1"))

    async def _ask(self, target: Target, request: bytes) -> Reply:
        connection = self._idle.pop() if self._idle else None
        if connection is None or not connection.usable:
            connection = await target.connect()
        try:
            reply = await connection.ask(request)
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)
        return reply


def _predictions(reply: Reply, kind: str) -> dict[str, Any]:
    """Return the predictions in an answer of /v1/score, by name."""
    if kind == arrow.KIND:
        return arrow.scores_in(reply.body)
    return {name: np.array(values) for name, values in orjson.loads(reply.body)["predictions"].items()}
