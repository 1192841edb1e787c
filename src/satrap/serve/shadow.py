"""A shadow model: scores requests after they are answered, for a comparison with the served model."""

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

from satrap.serve.http.request import ScoreRequest
from satrap.serve.loadtest.connection import HttpConnection, HttpReply, TargetServer
from satrap.serve.protocols import arrow
from satrap.serve.protocols.json import KIND
from satrap.serve.scoring.scorer import ScoredRequest

UNDER_WAY = 8
"""Maximum number of requests that the shadow scores at a time; further ones are dropped."""
WINDOW = 100_000
"""Number of recent items in the means; older items fade."""
ANSWER_SECONDS = 10.0
END_SECONDS = 10.0
"""How long to wait for an answer, and for the process to end."""
BEHIND = (503, 504)


@dataclass(slots=True)
class Compared:
    """Means of one prediction over the last items.

    Attributes:
        items: number of items in the means, at most `WINDOW`.
        served, shadow: mean prediction of each model.
        difference: mean absolute difference of the predictions.
    """

    items: int = 0
    served: float = 0.0
    shadow: float = 0.0
    difference: float = 0.0

    def add(self, served: Any, shadow: Any) -> None:
        """Add the predictions of some items, float[n] each."""
        self.items = min(self.items + len(served), max(WINDOW, len(served)))
        share = len(served) / self.items
        self.served += share * (float(served.mean()) - self.served)
        self.shadow += share * (float(shadow.mean()) - self.shadow)
        self.difference += share * (float(np.abs(shadow - served).mean()) - self.difference)


@dataclass(slots=True)
class ShadowStatistics:
    """Counters of a `Shadow`.

    Attributes:
        step: training step of the shadow's last answer; -1: none.
        answers: requests that the shadow has scored.
        dropped: requests not sent to the shadow, or not scored, because it was not ready or was behind.
        failed: requests that the shadow could not score.
        predictions: name -> comparison of the prediction.
    """

    step: int = -1
    answers: int = 0
    dropped: int = 0
    failed: int = 0
    predictions: dict[str, Compared] = field(default_factory=dict)


class Shadow:
    """Sends answered requests to a second server in a separate process, at the lowest priority.

    It is a process because a thread would hold the interpreter lock while requests wait. This process makes
    each comparison in the event loop, after the answer has been sent.

    ```python
    with Shadow(["serve", "runs/candidate", "--listen", "127.0.0.1:0"], say=print) as shadow:
        response.background = BackgroundTask(shadow.offer, request, body, kind, answer)
    ```

    Args:
        arguments: arguments of the `satrap` command that serves the shadow.
        headers: headers of each request to the shadow.
        say: called with each line that the shadow prints.

    Attributes:
        statistics: counters, which any thread may read.
        target: address of the shadow; None: it is not ready.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        headers: dict[str, str] | None = None,
        *,
        say: Callable[[str], object] = lambda _: None,
    ) -> None:
        self.statistics = ShadowStatistics()
        self.target: TargetServer | None = None
        self._arguments, self._headers, self._say = list(arguments), headers, say
        self._idle: list[HttpConnection] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "satrap.cli", *self._arguments, "--stop-at-eof"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        with suppress(OSError):  # threads started later inherit the priority
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
        """Wait for pending comparisons, then close the connections; call it before the event loop ends."""
        await asyncio.gather(*self._tasks)
        while self._idle:
            self._idle.pop().close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                name, _, text = line.strip().partition(" ")
                if name == "scores":
                    self.target = TargetServer.of(text.strip().removesuffix("/v1/score"), self._headers)
                self._say(f"shadow: {line.rstrip()}")
        self.target = None

    async def offer(self, request: ScoreRequest, body: bytes, kind: str, answer: ScoredRequest) -> None:
        """Send the shadow a request that has been answered, without waiting for its scores.

        Args:
            request: the answered request; it is not compared if it names a step.
            body: body of the request.
            kind: media type of the body. If /v1/score does not accept it, the request is sent as Arrow.
            answer: answer to the request.
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

    async def _compare(self, target: TargetServer, body: bytes, kind: str, answer: ScoredRequest) -> None:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                reply = await self._ask(target, target.post("/v1/score", body, kind))
        except OSError:  # TimeoutError is an OSError
            self.statistics.failed += 1
            return
        if reply.status in BEHIND:
            self.statistics.dropped += 1
            return
        predictions = _predictions(reply, kind) if reply.status == 200 else {}
        common = [
            name for name in answer.model.outputs if len(predictions.get(name, ())) == len(answer.scores)
        ]
        if not common:
            self.statistics.failed += 1
            return
        for name in common:
            served = answer.scores[:, answer.model.outputs.index(name)]
            self.statistics.predictions.setdefault(name, Compared()).add(served, predictions[name])
        self.statistics.answers += 1
        self.statistics.step = int(reply.headers.get("satrap-step", "-1"))

    async def _ask(self, target: TargetServer, request: bytes) -> HttpReply:
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


def _predictions(reply: HttpReply, kind: str) -> dict[str, Any]:
    """Return the predictions in an answer of /v1/score, by name."""
    if kind == arrow.KIND:
        return arrow.scores_in(reply.body)
    return {name: np.array(values) for name, values in orjson.loads(reply.body)["predictions"].items()}
