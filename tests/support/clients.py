"""Clients of a server of scores that ask it without a pause."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.serve.followed import eventually


class Clients:
    """Threads that send a server one request after another, each on its connection, until the block ends.

    No request may fail, but with status `refusal`, if it is given.

    Attributes:
        answers: (step, scores) of each answer.
        refused: the requests that failed so.
        failed: what came in place of other answers.
        phase: what happens now, for `failed`.
    """

    def __init__(
        self,
        address: tuple[str, int],
        request: Mapping[str, Any],
        count: int = 3,
        *,
        refusal: int | None = None,
    ) -> None:
        self._address, self._body, self._refusal = address, json.dumps(request).encode(), refusal
        self.answers: list[tuple[int, Any]] = []
        self.refused: list[str] = []
        self.failed: list[str] = []
        self.phase = ""
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(count)]

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        assert self.failed == []

    def _ask(self) -> None:
        connection = http.client.HTTPConnection(*self._address, timeout=60)
        while not self._stopping.is_set():
            try:
                connection.request("POST", "/v1/score", self._body)
                answer = connection.getresponse()
                body = answer.read()
            except (OSError, http.client.HTTPException) as error:
                self.failed.append(f"{self.phase}: {error!r}")
                connection.close()
                continue
            if answer.status == 200:
                found = json.loads(body)
                self.answers.append((found["step"], found["predictions"]["clicked_probability"]))
            else:
                told = self.refused if answer.status == self._refusal else self.failed
                told.append(f"{self.phase}: {answer.status} {body[:200]!r}")
        connection.close()

    def some_more(self, count: int = 20) -> None:
        """Wait until some more requests were answered."""
        enough = len(self.answers) + count
        self._wait(lambda: len(self.answers) > enough)

    def until(self, step: int) -> None:
        """Wait until an answer is of a step."""
        begun = len(self.answers)
        self._wait(lambda: any(one == step for one, _ in self.answers[begun:]))

    def until_at_least(self, step: int) -> None:
        """Wait until an answer is of a step or a later one."""
        self._wait(lambda: any(one >= step for one, _ in self.answers[-1:]), 300)

    def _wait(self, condition: Any, seconds: float = 60) -> None:
        eventually(lambda: condition() or bool(self.failed), seconds)

    def mixed(self, *wanted: dict[int, Any]) -> int:
        """Return how many answers are not the scores of the step they name, in one of the pasts it had."""
        return sum(
            not any(np.allclose(scores, past[step], rtol=0, atol=1e-6) for past in wanted if step in past)
            for step, scores in self.answers
        )
