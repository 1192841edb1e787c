"""`satrap versions`, against a server that follows a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from satrap.rpc import create_key
from satrap.serve.versions.follow import Follower
from tests.cli.command import satrap
from tests.serve.followed import Appearing, eventually, run_with_snapshots, snapshot, steps
from tests.serve.served import served

Server = tuple[str, Path, Appearing, list[int]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """URL, key, versions and steps of a server."""
    folder = tmp_path_factory.mktemp("versions")
    trained = run_with_snapshots(folder)
    series, key = Appearing(str(trained.checkpoints)), folder / "key"
    create_key(key)
    load = lambda step: snapshot(trained, step, known=True, keep=1)  # noqa: E731
    secret = key.read_bytes().strip()
    with (
        served(load(series.newest), secret=secret) as found,
        Follower(series, load, found.scorer, notice=pytest.fail) as follower,
    ):
        found.application.versions.follower = follower
        host, port = found.address
        yield f"http://{host}:{port}", key, series, steps(trained)


def test_list_pin_rollback_release(server: Server) -> None:
    url, key, series, (first, second, *_) = server
    asked = [url, "--key", key]
    assert satrap("versions", "list", *asked).out == f"{first} <- served\n"
    series.newest = second
    listed = f"{first} (in memory)\n{second} <- served\n"
    eventually(lambda: satrap("versions", "list", *asked).out == listed)
    answer = satrap("versions", "rollback", *asked, "--to", first)
    assert answer.out == f"step {first} is served, and pinned until satrap versions release {url}\n"
    assert satrap("versions", "list", *asked).out == f"{first} <- served, pinned\n{second}\n"
    assert satrap("versions", "pin", *asked).out.startswith(f"step {first} is pinned")
    assert satrap("versions", "release", *asked).out.startswith(f"step {first} is served until")
    eventually(lambda: '"pinned": false' in satrap("versions", "list", *asked, "--json").out)
    eventually(lambda: satrap("versions", "list", *asked).out == listed)


def test_what_the_server_refuses_is_said_as_it_says_it(
    server: tuple[str, Path, Appearing, list[int]],
) -> None:
    url, key, *_ = server
    answer = satrap("versions", "rollback", url, "--key", key, "--to", 99_999)
    assert answer.code == 2
    assert "no version has step 99999" in answer.err
    answer = satrap("versions", "list", url)
    assert answer.code == 2
    assert "the request has no key" in answer.err


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "127.0.0.1:1", "ftp://127.0.0.1:1"])
def test_a_server_that_is_not_there(url: str) -> None:
    answer = satrap("versions", "list", url)
    assert answer.code == 2
    assert "Traceback" not in answer.err
