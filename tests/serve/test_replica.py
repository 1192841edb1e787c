"""A replica of Ray Serve: an application with its own scorer and follower; two of them on a real Ray."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from satrap.errors import ConfigError
from satrap.launch.folder.run_folder import RunFolder
from satrap.serve.replica import Arguments, Replica, _checked
from satrap.tools.deploy import RayServing, ray_serve
from tests.serve.followed import appear, beginning, eventually, steps
from tests.serve.followed import expected as scores_by_step
from tests.serve.requests import plain


@contextmanager
def alive(replica: Replica) -> Iterator[Callable[[str, str, bytes], tuple[int, Any]]]:
    """Begin and end the lifespan as a server does; give what asks the application."""
    events: list[str] = []
    loop = asyncio.new_event_loop()
    inbox: asyncio.Queue[dict[str, str]] = asyncio.Queue()

    async def said(event: dict[str, str]) -> None:
        events.append(event["type"])

    async def begun() -> asyncio.Task[None]:
        task = asyncio.ensure_future(replica({"type": "lifespan"}, inbox.get, said))
        await inbox.put({"type": "lifespan.startup"})
        while not events:
            await asyncio.sleep(0)
        return task

    async def ended(task: asyncio.Task[None]) -> None:
        await inbox.put({"type": "lifespan.shutdown"})
        await task

    async def asked(method: str, path: str, body: bytes) -> tuple[int, Any]:
        sent: list[dict[str, Any]] = []
        waiting = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict[str, Any]:
            return waiting.pop() if waiting else await asyncio.Future[dict[str, Any]]()

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        scope = {"type": "http", "method": method, "path": path, "headers": [], "query_string": b""}
        await replica(scope, receive, send)
        return sent[0]["status"], sent[1]["body"]

    task = loop.run_until_complete(begun())
    try:
        yield lambda method, path, body=b"": loop.run_until_complete(asked(method, path, body))
    finally:
        loop.run_until_complete(ended(task))
        loop.close()
    assert events == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


def test_it_scores_until_its_lifespan_ends(run: RunFolder, rows: pd.DataFrame, expected: Any) -> None:
    replica = Replica(_checked({"run": str(run.path), "name": "mine"}))
    with alive(replica) as ask:
        status, body = ask("POST", "/v1/score", json.dumps({"items": plain(rows)}).encode())
        answer = json.loads(body)
        assert (status, answer["model"]) == (200, "mine")
        for name, scores in expected.items():
            np.testing.assert_allclose(answer["predictions"][name], scores, rtol=1e-6, atol=1e-6)
        assert ask("GET", "/v2/models/mine/ready", b"")[0] == 200
        before = threading.active_count()
    assert threading.active_count() < before  # the scoring thread has ended


def test_it_follows_by_itself(snapshots: RunFolder, tmp_path: Path) -> None:
    folder, later = beginning(snapshots, tmp_path, "checkpoints")
    with alive(Replica(Arguments(run=str(folder), follow=True))) as ask:

        def step() -> int:
            return int(json.loads(ask("GET", "/v1/model", b"")[1])["step"])

        first = step()
        appear(later[0], folder / "checkpoints")
        eventually(lambda: step() > first)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"run": "runs/x", "folow": True}, r"no argument 'folow'\n.*did you mean 'follow'"),
        ({"follow": True}, r"needs the argument run\n.*runs/x"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        _checked(arguments)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@contextmanager
def ray_serving(file: Path, folder: Path, url: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the file with Ray's own command, on a Ray of its own."""
    command = [Path(sys.executable).with_name("serve"), "run", "--blocking", str(file)]
    quiet = {"RAY_USAGE_STATS_ENABLED": "0"}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, env={**os.environ, **quiet}, stdout=log, stderr=subprocess.STDOUT, cwd=folder
        )
    try:

        def ready() -> bool:
            assert process.poll() is None, (folder / "log").read_text()
            try:
                with urllib.request.urlopen(f"{url}/ready", timeout=5) as answer:
                    return bool(answer.status == 200)
            except (urllib.error.URLError, OSError):
                return False

        eventually(ready, 200)
        yield process
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.ray
@pytest.mark.timeout(600)
def test_two_replicas_on_ray_follow_a_run(snapshots: RunFolder, tmp_path: Path, rows: pd.DataFrame) -> None:
    """Each answer is of the step that it names; each replica comes to the newest by itself."""
    folder, later = beginning(snapshots, tmp_path, "checkpoints")
    wanted = scores_by_step(snapshots, rows)
    port = free_port()
    asked = RayServing(run=str(folder), listen=f"127.0.0.1:{port}", cpu=0.5, follow=True)
    (tmp_path / "serve.yaml").write_text(ray_serve(asked))
    (tmp_path / "ray").mkdir()
    url = f"http://127.0.0.1:{port}"
    body = json.dumps({"items": plain(rows)}).encode()

    def answered() -> int:
        with urllib.request.urlopen(f"{url}/v1/score", body, timeout=60) as answer:
            found = json.loads(answer.read())
        scores = found["predictions"]["clicked_probability"]
        np.testing.assert_allclose(scores, wanted[found["step"]], rtol=1e-6, atol=1e-6)
        return int(found["step"])

    with ray_serving(tmp_path / "serve.yaml", tmp_path / "ray", url):
        assert {answered() for _ in range(20)} == {steps(snapshots)[0]}
        for snapshot, step in zip(later, steps(snapshots)[1:], strict=False):
            appear(snapshot, folder / "checkpoints")
            eventually(lambda step=step: {answered() for _ in range(10)} == {step})  # type: ignore[misc]
