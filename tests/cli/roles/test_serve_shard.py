"""`satrap serve-shard` and `satrap serve --shards` as users start them, and a shard that is killed."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from satrap.rpc import create_key
from tests.cli.command import satrap
from tests.cli.serving import running, started
from tests.serve.followed import appear, beginning, eventually, expected, run_with_snapshots
from tests.serve.requests import plain
from tests.serve.served import COLUMNS, Served, frame
from tests.support.clients import Clients


@contextmanager
def shard(*arguments: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a shard; give its process and its address."""
    with running("serve-shard", *arguments) as (process, lines):
        line = next(line for line in lines if " ready on " in line)
        assert "(encrypted)" in line
        yield process, line.split()[4]


@pytest.mark.cluster
def test_no_answer_is_of_two_versions_and_a_killed_shard_is_a_clear_503_until_it_is_back(
    tmp_path: Path,
) -> None:
    """Two shards and a server, as processes with a key, under load while versions appear."""
    snapshots = run_with_snapshots(tmp_path)
    rows = frame(60, seed=7)[COLUMNS]
    wanted: dict[int, Any] = expected(snapshots, rows)
    (tmp_path / "copy").mkdir()
    copied, later = beginning(snapshots, tmp_path / "copy", "checkpoints")
    first, *steps = wanted
    key = tmp_path / "key"
    create_key(key)
    follow = ["--follow", "--key", key]
    with (
        shard(copied, "--shard", "0/2", "--listen", "127.0.0.1:0", *follow) as (killed, address),
        shard(copied, "--shard", "1/2", "--listen", "127.0.0.1:0", *follow) as (other, second),
    ):
        asked = ["--shards", f"{address},{second}", "--set", f"serving.shards_key={key}"]
        listen = ["--listen", "127.0.0.1:0", "--set", "serving.deadline=60"]
        with started(copied, "--follow", *listen, *asked) as (server, lines):
            assert lines["serving"] == f"books, step {first}"
            host, port = re.findall(r"http://([\d.]+):(\d+)", lines["scores"])[0]
            client = Served((host, int(port)), cast(Any, None), cast(Any, None))
            request = {"items": plain(rows)}

            def served() -> int:
                status, answer = client.score(request)
                return int(answer["step"]) if status == 200 else -status

            with Clients(client.address, request, count=2) as clients:
                for version, step in zip(later, steps[:-1], strict=False):
                    appear(version, copied / "checkpoints")
                    eventually(lambda step=step: served() == step)  # type: ignore[misc]
                    clients.some_more()
            found = clients.answers
            with Clients(client.address, request, count=2, refusal=503) as clients:
                clients.some_more()
                assert client.ask("/ready")[0] == 200
                killed.send_signal(signal.SIGKILL)
                eventually(lambda: served() == -503)
                status, _, told = client.ask("/ready")
                assert (status, b"shard 0 at " + address.encode() in told) == (503, True)
                before = len(clients.answers)
                appear(
                    later[len(steps) - 1], copied / "checkpoints"
                )  # the server waits for the shard that is away
                with shard(copied, "--shard", "0/2", "--listen", address, *follow) as (again, _):
                    eventually(lambda: served() == steps[-1])
                    assert client.ask("/ready")[0] == 200
                    eventually(lambda: len(clients.answers) > before + 20)
                    again.send_signal(signal.SIGTERM)
                    assert again.wait(60) == 0
            assert clients.refused
            clients.answers += found
            assert {step for step, _ in clients.answers} == {first, *steps}
            assert clients.mixed(wanted) == 0
            server.send_signal(signal.SIGTERM)
            assert server.wait(60) == 0
        other.send_signal(signal.SIGTERM)
        assert other.wait(60) == 0


def test_what_is_no_shard_is_refused(tmp_path: Path) -> None:
    for numbers in ("2", "1/", "a/b"):
        answer = satrap("serve-shard", tmp_path, "--shard", numbers, "--listen", "127.0.0.1:0")
        assert (answer.code, "is not I/N" in answer.err) == (2, True)
    satrap("serve-shard", tmp_path, "--shard", "0/2", "--listen", "127.0.0.1:0").assert_refused("run folder")
