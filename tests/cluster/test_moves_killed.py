"""A process is killed inside a move of rows, at a named point: what the run learns does not depend on it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.command import Answer
from tests.cluster.points import Point
from tests.cluster.runs import children, eventually
from tests.support.asked_runs import Run
from tools_dev.chaos.digests import differences, digest

pytestmark = pytest.mark.cluster

SETTINGS = ["training.epochs=30", "checkpoint.every_steps=50", "cluster.deadline=600", "cluster.restarts=1"]
JOURNAL = "checkpoint.durability=journal"
AGAIN = "all workers restart from"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What a run without moves has learnt."""
    with Run(tmp_path_factory.mktemp("undisturbed"), *SETTINGS) as run:
        run.ended()
        return digest(str(run.folder / "model"))


def add_and_kill(run: Run, point: Point, role: str, *, visit: int = 1) -> Answer:
    """Have a shard join, kill a role of the run at a point, and return the answer of `satrap shards add`."""
    assert run.training()
    with run.ask("add") as asked:

        def killed() -> bool:
            assert run.popen.poll() is None, run.log.read_text()
            return point.kill(children(run.popen.pid).get(role), visit=visit)

        assert eventually(killed), run.log.read_text()
        out, err = asked.communicate()
    return Answer(asked.returncode, out, err)


@pytest.mark.parametrize(
    ("point", "role"),
    [
        pytest.param("shard.export", "shard 0", marks=pytest.mark.slow),
        pytest.param("shard.load", "shard 2", marks=pytest.mark.slow),
        pytest.param("shard.map", "shard 1", marks=pytest.mark.slow),
        ("shard.map", "shard 2"),
    ],
)
def test_a_shard_with_a_journal_comes_back_into_the_move(
    tmp_path: Path, undisturbed: dict[str, str], point: str, role: str
) -> None:
    """A source and a target, as rows are read and loaded, and as the map changes."""
    where = Point(tmp_path, point)
    with Run(tmp_path, *SETTINGS, JOURNAL, variables=where.variables) as run:
        added = add_and_kill(run, where, role)
        assert added.code == 0, (added.err, run.log.read_text())
        assert [one["shard"] for one in json.loads(added.out)["shards"]] == [0, 1, 2]
        run.ended()
        said = run.log.read_text()
        assert f"[{role}] was killed by SIGKILL; training waits for it" in said
        assert AGAIN not in said
        assert differences(digest(str(run.folder / "model")), undisturbed) == []


@pytest.mark.parametrize(
    ("point", "role", "visit"),
    [
        pytest.param("shard.export", "shard 0", 1, marks=pytest.mark.slow),
        ("shard.load", "shard 2", 1),
        pytest.param("move.copied", "worker 0", 1, marks=pytest.mark.slow),
        pytest.param("move.mapped", "worker 0", 2, marks=pytest.mark.slow),
        pytest.param("move.adopt", "worker 0", 2, marks=pytest.mark.slow),
        pytest.param("move.adopt", "worker 1", 2, marks=pytest.mark.slow),
    ],
)
def test_workers_and_shards_without_a_journal_begin_anew_and_the_move_can_be_asked_for_again(
    tmp_path: Path, undisturbed: dict[str, str], point: str, role: str, visit: int
) -> None:
    """Rank 0, which coordinates the move, and another one; in the first portion, and in the second."""
    where = Point(tmp_path, point)
    with Run(tmp_path, *SETTINGS, variables=where.variables) as run:
        added = add_and_kill(run, where, role, visit=visit)
        assert "not all rows were moved: all workers restart" in added.err, run.log.read_text()
        again = run.shards("add")
        assert [one["shard"] for one in again["shards"]] == [0, 1, 2]
        run.ended()
        said = run.log.read_text()
        assert re.search(rf"{role}\]? was killed by SIGKILL", said)
        assert said.count(AGAIN) == 1
        assert differences(digest(str(run.folder / "model")), undisturbed) == []
