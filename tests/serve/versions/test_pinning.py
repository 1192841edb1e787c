"""An operator keeps a version, goes back to one and follows again, while clients are answered."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from satrap.config.keys.serving import ServingKeys
from satrap.launch.folder.run_folder import RunFolder
from satrap.rpc import create_key
from satrap.serve.versions import overlay
from satrap.serve.versions.follow import Follower
from tests.serve.followed import Appearing, eventually, expected, snapshot, steps
from tests.serve.requests import plain
from tests.serve.served import Served, served
from tests.support.clients import Clients


@dataclass
class Followed:
    server: Served
    series: Appearing
    follower: Follower

    def change(self, action: str, body: Any = None) -> tuple[int, Any]:
        return self.server.score(body or {}, f"/v1/versions/{action}")

    def listed(self) -> Any:
        status, _, body = self.server.ask("/v1/versions")
        assert status == 200
        return json.loads(body)

    def serve(self, *wanted: int) -> None:
        """Have the versions of some steps appear and be served, one after another."""
        for step in wanted:
            self.series.newest = step
            eventually(lambda step=step: self.step == step)  # type: ignore[misc]

    @property
    def step(self) -> int:
        return self.server.scorer.model.step


@pytest.fixture
def followed(snapshots: RunFolder) -> Iterator[Followed]:
    series = Appearing(str(snapshots.checkpoints))
    load = lambda step: snapshot(snapshots, step, known=True, keep=2)  # noqa: E731
    with (
        served(load(series.newest)) as server,
        Follower(series, load, server.scorer, notice=pytest.fail) as follower,
    ):
        server.application.versions.follower = follower
        yield Followed(server, series, follower)


def test_a_pinned_version_stays_until_it_is_released(followed: Followed, snapshots: RunFolder) -> None:
    first, second, *_ = steps(snapshots)
    assert followed.listed() == {
        "step": first,
        "pinned": False,
        "versions": [first],
        "earlier": [],
        "rollbacks": 0,
    }
    assert followed.change("pin") == (200, {"step": first, "pinned": True})
    followed.series.newest = second
    eventually(lambda: followed.follower.statistics.latest == second)
    assert followed.listed() == {
        "step": first,
        "pinned": True,
        "versions": [first, second],
        "earlier": [],
        "rollbacks": 0,
    }
    assert followed.change("release") == (200, {"step": first, "pinned": False})
    eventually(lambda: followed.step == second)


def test_no_request_fails_and_no_answer_is_mixed_while_a_server_goes_back_and_follows_again(
    followed: Followed, snapshots: RunFolder, rows: pd.DataFrame
) -> None:
    wanted = expected(snapshots, rows)
    first, _, third, last = steps(snapshots)
    followed.series.newest = third
    eventually(lambda: followed.step == third)
    with Clients(followed.server.address, {"items": plain(rows)}, 2) as clients:
        clients.some_more()
        assert followed.change("rollback", {"step": first}) == (200, {"step": first, "pinned": True})
        followed.series.newest = last
        eventually(lambda: followed.follower.statistics.latest == last)
        assert followed.step == first
        clients.some_more()
        followed.change("release")
        eventually(lambda: followed.step == last)
        clients.some_more()
    assert {step for step, _ in clients.answers} == {third, first, last}
    assert clients.mixed(wanted) == 0


def test_going_back_to_a_version_in_memory_reads_nothing(
    followed: Followed, snapshots: RunFolder, rows: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while rows of the newest version are being written, and if the folder has lost the old one."""
    monkeypatch.setattr(overlay, "FOLDED_ROWS", 3)
    wanted = expected(snapshots, rows)
    _, second, third, last = steps(snapshots)
    counters = followed.follower.statistics
    with Clients(followed.server.address, {"items": plain(rows)}, 2) as clients:
        followed.serve(second, third, last)
        assert followed.listed()["earlier"] == [second, third]
        monkeypatch.setattr(Appearing, "steps", lambda _: [last])
        for step in (third, second):
            assert followed.change("rollback", {"step": step}) == (200, {"step": step, "pinned": True})
            clients.some_more()
        assert followed.listed()["earlier"] == []
        assert (counters.reloads, counters.rollbacks) == (0, 2)
        followed.change("release")
        eventually(lambda: followed.step == last)
        clients.some_more()
        assert counters.reloads == 0, "what follows is read as an update again"
    assert clients.mixed(wanted) == 0
    assert {second, third, last} <= {step for step, _ in clients.answers}


def test_going_back_twice_at_once_waits_for_the_rows_of_the_first_time(
    followed: Followed, snapshots: RunFolder, rows: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What only the newest version changed is not among what the version between has to give back."""
    monkeypatch.setattr(overlay, "FOLDED_ROWS", 1)
    wanted = expected(snapshots, rows)
    _, second, third, last = steps(snapshots)
    followed.serve(second, third, last)
    eventually(lambda: followed.server.scorer.model.settled)
    with Clients(followed.server.address, {"items": plain(rows)}, 2) as clients:
        for step in (third, second):
            assert followed.change("rollback", {"step": step}) == (200, {"step": step, "pinned": True})
        clients.some_more()
    assert clients.mixed(wanted) == 0


def test_a_step_that_there_is_not_and_a_body_without_one_change_nothing(
    followed: Followed, snapshots: RunFolder
) -> None:
    first, *_ = steps(snapshots)
    status, answer = followed.change("rollback", {"step": 99_999})
    assert (status, answer["error"]["what"]) == (404, "no version has step 99999")
    assert answer["error"]["fix"] == f"use one of these steps: {first}"
    for body in ({"to": 3}, {"step": "3"}, {"step": True}, {"step": -1}, [3]):
        assert followed.change("rollback", body)[0] == 422
    assert followed.listed() == {
        "step": first,
        "pinned": False,
        "versions": [first],
        "earlier": [],
        "rollbacks": 0,
    }


def test_going_back_to_the_served_step_keeps_it(followed: Followed, snapshots: RunFolder) -> None:
    first, *_ = steps(snapshots)
    assert followed.change("rollback", {"step": first}) == (200, {"step": first, "pinned": True})
    assert followed.follower.statistics.reloads == 0


def test_a_server_that_follows_nothing_says_so(server: Served) -> None:
    assert server.ask("/v1/versions")[0] == 409
    status, answer = server.score({}, "/v1/versions/pin")
    assert (status, answer["error"]["fix"]) == (409, "start the server with satrap serve DIR --follow")


def test_operators_need_the_key(snapshots: RunFolder, tmp_path: Path) -> None:
    create_key(tmp_path / "key")
    secret = (tmp_path / "key").read_bytes().strip()
    with served(snapshot(snapshots, steps(snapshots)[0]), secret=secret) as server:
        assert server.ask("/v1/versions")[0] == 401
        assert server.score({}, "/v1/versions/pin")[0] == 401
        assert server.score({}, "/v1/versions/pin", Authorization=f"Bearer {secret.decode()}")[0] == 409


def test_a_server_whose_run_publishes_no_more_is_stale_but_ready_unless_fresh_ones_are_asked_for(
    snapshots: RunFolder,
) -> None:
    series = Appearing(str(snapshots.checkpoints))
    load = lambda step: snapshot(snapshots, step, known=True)  # noqa: E731
    with served(load(series.newest), ServingKeys(max_staleness=0.5)) as server:
        server.scorer.model.published -= 60
        assert server.ask("/ready")[::2] == (200, b"ready"), "it does not follow"
        with Follower(series, load, server.scorer, notice=pytest.fail) as follower:
            server.application.versions.follower = follower
            status, _, body = server.ask("/ready")
            assert status == 200
            assert body.startswith(b"stale: step ")
            assert server.ask("/ready?fresh")[0] == 503
            assert server.ask("/live")[0] == 200
            follower.pin()
            assert server.ask("/ready?fresh")[0] == 200
