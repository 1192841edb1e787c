"""Two servers behind a balancer: updates, a drain and a kill under load, and no request fails."""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from satrap import launch
from satrap.checkpoint import Series
from satrap.config import load
from satrap.launch.folder.run_folder import RunFolder
from tests.cli.serving import started
from tests.serve.followed import appear, beginning, eventually, scores_of
from tests.serve.requests import plain
from tests.serve.served import COLUMNS, RECIPE, frame
from tests.support.balancer import HAPROXY, balancer, status
from tests.support.clients import Clients
from tests.support.logs import free_port

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(HAPROXY is None, reason="haproxy is not installed (Debian: package haproxy)"),
]
UPDATES = 20
DRAIN = 1
"""Seconds; the balancer asks ten times a second whether a server is ready."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run with a feed of many versions."""
    folder = tmp_path_factory.mktemp("balanced")
    frame().to_parquet(folder / "rows.parquet")
    (folder / "books.yaml").write_text(RECIPE)
    settings = ["training.epochs=30", "training.patience=null", "publish.every=0.001s"]
    launch.train(load(folder / "books.yaml", settings), str(folder / "books"))
    return RunFolder.open(folder / "books")


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
        with Clients(("127.0.0.1", port), {"items": plain(rows)}, 4) as load:
            load.some_more(60)
            for version, step in versions[: UPDATES // 2]:
                appear(version, folder / "feed")
                load.until(step)
            load.phase = "drain"
            first.send_signal(signal.SIGTERM)
            assert first.wait(60) == 0
            load.some_more(60)
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
            load.some_more(60)
            before = len(load.answers)
            load.some_more(60)
    assert load.mixed(wanted) == 0
    assert {step for step, _ in load.answers} == set(wanted)
    assert {step for step, _ in load.answers[before:]} == {max(wanted)}
