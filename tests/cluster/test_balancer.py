"""Two servers behind a balancer: updates, a drain and a kill under load, and no request fails."""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from satrap import launch
from satrap.checkpoint import Series
from satrap.config import load
from satrap.launch.folder import RunFolder
from tests.cli.serving import started
from tests.serve.followed import appear, beginning, eventually, scores_of
from tests.serve.requests import plain
from tests.serve.served import COLUMNS, RECIPE, frame

HAPROXY = shutil.which("haproxy")
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(HAPROXY is None, reason="haproxy is not installed (Debian: package haproxy)"),
]
UPDATES = 20
DRAIN = 1
"""Seconds; the balancer asks ten times a second whether a server is ready."""

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


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run with a feed of many versions."""
    folder = tmp_path_factory.mktemp("balanced")
    frame().to_parquet(folder / "rows.parquet")
    (folder / "books.yaml").write_text(RECIPE)
    settings = ["training.epochs=30", "training.patience=null", "publish.every=0.001s"]
    launch.train(load(folder / "books.yaml", settings), str(folder / "books"))
    return RunFolder.open(folder / "books")


class Load:
    """Clients of the balancer, each with one request after another, until the block ends.

    Attributes:
        answers: (step, scores) of each answer with status 200.
        failed: what came instead.
        phase: what happens now, for the errors.
    """

    def __init__(self, port: int, rows: pd.DataFrame, count: int = 4) -> None:
        self._port, self._body = port, json.dumps({"items": plain(rows)}).encode()
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

    def mixed(self, wanted: dict[int, Any]) -> int:
        """Return how many answers are not the scores of the step they name."""
        return sum(not np.allclose(scores, wanted[step], rtol=0, atol=1e-6) for step, scores in self.answers)


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


def test_no_request_fails_while_versions_come_and_servers_go(run: RunFolder, tmp_path: Path) -> None:
    rows = frame(20, seed=5)[COLUMNS]
    series = Series(str(run.feed))
    assert len(series.steps()) > UPDATES
    wanted = scores_of(series, series.steps()[: UPDATES + 1], rows)
    folder, later = beginning(run, tmp_path, "feed")
    versions = list(zip(later, list(wanted)[1:], strict=False))
    port, *servers = (free_port() for _ in range(3))

    def server(number: int) -> Any:
        return started(folder, "--follow", "--drain", DRAIN, "--listen", f"127.0.0.1:{servers[number]}")

    with ExitStack() as stack:
        first, _ = stack.enter_context(server(0))
        second, _ = stack.enter_context(server(1))
        stack.enter_context(balancer(tmp_path, port, servers))
        with Load(port, rows) as load:
            load.more()
            for version, step in versions[: UPDATES // 2]:
                appear(version, folder / "feed")
                load.until(step)
            load.phase = "drain"
            first.send_signal(signal.SIGTERM)
            assert first.wait(60) == 0
            load.more()
            load.phase = "one server"
            for version, step in versions[UPDATES // 2 : UPDATES]:
                appear(version, folder / "feed")
                load.until(step)
            stack.enter_context(server(0))  # it is back, with all versions
            eventually(lambda: status(servers[0]) == 200)
            time.sleep(0.3)  # the balancer has seen it
            load.phase = "kill"
            second.kill()
            second.wait()
            load.more()
            before = len(load.answers)
            load.more()
    assert load.failed == []
    assert load.mixed(wanted) == 0
    assert {step for step, _ in load.answers} == set(wanted)
    assert {step for step, _ in load.answers[before:]} == {max(wanted)}
