"""HAProxy in front of servers of scores, and clients that ask it without a pause."""

from __future__ import annotations

import http.client
import json
import shutil
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tests.serve.followed import eventually

HAPROXY = shutil.which("haproxy")

CONFIG = """\
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
  timeout check 10s
  option http-buffer-request
  retries 3
  option redispatch 1
  retry-on conn-failure empty-response
frontend scores
  bind 127.0.0.1:{port}
  default_backend servers
backend servers
  balance roundrobin
  option httpchk GET /ready
  default-server check inter 100ms fall 1 rise 1
"""
"""Scores may be asked for twice, so a request whose server is killed goes to the other one."""


class Load:
    """Clients of the balancer, each with one request after another, until the block ends.

    Attributes:
        answers: (step, scores) of each answer with status 200.
        failed: what came instead.
        phase: what happens now, for the errors.
    """

    def __init__(self, port: int, request: Mapping[str, Any], count: int = 4) -> None:
        self._port, self._body = port, json.dumps(request).encode()
        self.answers: list[tuple[int, Any]] = []
        self.failed: list[str] = []
        self.phase = "updates"
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(count)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _ask(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        while not self._stopping.is_set():
            try:
                connection.request("POST", "/v1/score", self._body)
                answer = connection.getresponse()
                body = answer.read()
            except (OSError, http.client.HTTPException) as error:
                self.failed.append(f"{self.phase}: {error!r}")
                connection.close()
                continue
            if answer.status != 200:
                self.failed.append(f"{self.phase}: {answer.status} {body[:200]!r}")
                continue
            found = json.loads(body)
            self.answers.append((found["step"], found["predictions"]["clicked_probability"]))
        connection.close()

    def more(self, count: int = 60) -> None:
        """Wait until some more requests were answered."""
        enough = len(self.answers) + count
        eventually(lambda: len(self.answers) >= enough or bool(self.failed))

    def until(self, step: int) -> None:
        """Wait until an answer is of a step."""
        begun = len(self.answers)
        eventually(lambda: any(one == step for one, _ in self.answers[begun:]) or bool(self.failed))

    def until_at_least(self, step: int) -> None:
        """Wait until an answer is of a step or a later one."""
        eventually(lambda: any(one >= step for one, _ in self.answers[-1:]) or bool(self.failed), 300)

    def mixed(self, *wanted: dict[int, Any]) -> int:
        """Return how many answers are not the scores of the step they name, in one of the pasts it had."""
        return sum(
            not any(np.allclose(scores, past[step], rtol=0, atol=1e-6) for past in wanted if step in past)
            for step, scores in self.answers
        )


@contextmanager
def balancer(folder: Path, port: int, servers: list[int]) -> Iterator[None]:
    lines = [f"  server s{number} 127.0.0.1:{one}" for number, one in enumerate(servers)]
    (folder / "haproxy.cfg").write_text(CONFIG.format(port=port) + "\n".join(lines) + "\n")
    with (folder / "haproxy.log").open("wb") as log:
        process = subprocess.Popen(
            [str(HAPROXY), "-db", "-f", folder / "haproxy.cfg"], stdout=log, stderr=subprocess.STDOUT
        )
    try:

        def ready() -> bool:
            assert process.poll() is None, (folder / "haproxy.log").read_text()
            return status(port) == 200

        eventually(ready)
        yield
    finally:
        process.terminate()
        process.wait()


def status(port: int) -> int:
    """Return the status of /ready, 0 without an answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0
