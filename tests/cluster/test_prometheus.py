"""A real Prometheus follows a real run: dashboard and alert rules find what they ask for."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from satrap.tools.deploy import alerts
from satrap.tools.deploy.alerts import ALERTS
from satrap.tools.deploy.dashboard import queries
from satrap.tools.deploy.text import to_yaml
from tests.cli.command import satrap
from tests.cli.serving import started as serving
from tests.cluster.runs import Started, children, eventually
from tests.serve.served import trained

PROMETHEUS = shutil.which("prometheus")
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(PROMETHEUS is None, reason="Prometheus is not installed (Debian: package prometheus)"),
]
SERVER = "satrap_serve"
ROLES = ("shard-0", "shard-1", "worker-0", "worker-1", "loader-0", "embedding-worker-0")


class Prometheus:
    """A running Prometheus, asked over HTTP."""

    def __init__(self, address: str) -> None:
        self.address = address

    def get(self, path: str, **asked: str) -> Any:
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(asked)}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            return json.load(answer)["data"]

    def values(self, query: str) -> dict[str, float]:
        """The value of each series, by its instance."""
        found = self.get("query", query=query)["result"]
        return {one["metric"].get("instance", ""): float(one["value"][1]) for one in found}

    def answers(self, without: list[str]) -> bool:
        """Take the queries that have an answer out of the list; whether none is left."""
        without[:] = [query for query in without if not self.get("query", query=query)["result"]]
        return not without

    def ready(self) -> bool:
        try:
            return bool(self.get("status/runtimeinfo"))
        except (urllib.error.URLError, OSError):
            return False


@contextmanager
def prometheus(folder: Path, targets: Path) -> Iterator[Prometheus]:
    """One that reads every second, on loopback, with its data in a folder of its own."""
    assert PROMETHEUS is not None
    folder.mkdir()
    (folder / "alerts.yaml").write_text(to_yaml(alerts()))
    found = {"files": [str(targets)], "refresh_interval": "1s"}  # not told of a folder that is made later
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["alerts.yaml"],
        "scrape_configs": [{"job_name": "satrap", "file_sd_configs": [found]}],
    }
    (folder / "prometheus.yml").write_text(to_yaml(config))
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    options = ["--config.file=prometheus.yml", "--storage.tsdb.path=data"]
    options.append(f"--web.listen-address={address}")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [PROMETHEUS, *options],
            cwd=folder,
            stderr=log,
        )
        try:
            running = Prometheus(address)
            assert eventually(running.ready), (folder / "log").read_text()
            yield running
        finally:
            process.terminate()
            process.wait()


def test_every_query_has_an_answer_and_a_killed_shard_is_one_restart(tmp_path: Path) -> None:
    settings = ["cluster.metrics_port=0", "checkpoint.durability=journal"]
    with (
        prometheus(tmp_path / "prometheus", tmp_path / "run" / "targets.json") as seen,
        Started(tmp_path, *settings, loaders=1, middle=1) as started,
    ):
        assert eventually(lambda: set(seen.values("up == 1")) == set(ROLES)), started.said()
        without = [query for query in queries("run", "20s") if SERVER not in query]
        assert eventually(lambda: seen.answers(without)), without
        os.kill(children(started.popen.pid)["shard 0"], signal.SIGKILL)
        restarts = "changes(process_start_time_seconds[1h])"
        expected = dict.fromkeys(ROLES, 0.0) | {"shard-0": 1.0}
        assert eventually(lambda: seen.values(restarts) == expected), (seen.values(restarts), started.said())
        (group,) = seen.get("rules")["groups"]
        assert {rule["health"] for rule in group["rules"]} == {"ok"}
        assert len(group["rules"]) == len(ALERTS)
        started.popen.send_signal(signal.SIGINT)
        assert started.answer().code == 0
        assert eventually(lambda: seen.get("targets", state="active")["activeTargets"] == [])


def test_every_query_about_servers_has_an_answer(tmp_path: Path) -> None:
    run = trained(tmp_path / "trained")
    body = satrap("request", run.path).out.encode()
    targets = tmp_path / "targets.json"
    with serving(run.path, "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0") as (_, lines):
        address = lines["metrics"].removeprefix("http://").removesuffix("/metrics")
        labels = {"run": "run", "role": "server", "number": "0", "instance": "server-0"}
        targets.write_text(json.dumps([{"targets": [address], "labels": labels}]))
        without = [query for query in queries("run", "20s") if SERVER in query]
        assert len(without) > 10

        def asked() -> bool:
            with urllib.request.urlopen(lines["scores"], body, timeout=30) as answer:
                assert answer.status == 200
            return seen.answers(without)

        with prometheus(tmp_path / "prometheus", targets) as seen:
            assert eventually(asked), without
            assert seen.values("up == 1") == {"server-0": 1.0}
            (group,) = seen.get("rules")["groups"]
            assert {rule["health"] for rule in group["rules"]} <= {"ok", "unknown"}
