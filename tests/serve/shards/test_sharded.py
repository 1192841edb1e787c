"""A server whose rows are in shards: it answers as one that has them, and never with two versions."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from satrap.checkpoint import Series
from satrap.launch.folder.run_folder import RunFolder
from satrap.serve.shards.kept_rows import KeptRows
from satrap.serve.versions import overlay
from tests.serve.followed import appear, beginning, eventually, expected
from tests.serve.requests import plain
from tests.serve.served import model_of, served
from tests.serve.sharding import asking, at_step, serving, shard, sharded
from tests.support.clients import Clients


@pytest.mark.parametrize("shards", [1, 3])
def test_shards_give_the_scores_of_predict_and_of_one_server(
    shards: int, run: RunFolder, rows: pd.DataFrame, expected: dict[str, list[Any]]
) -> None:
    """The trained model, which nobody follows. Shards have rows of 32 bits: equal to the bit."""
    request = {"items": plain(rows)}
    with ExitStack() as stack:
        every = [
            stack.enter_context(serving(shard(run.path, i, shards, follow=False))) for i in range(shards)
        ]
        addresses = [one.server.address for one in every]
        server, _ = stack.enter_context(asking(run.path, addresses, follow=False))
        alone = stack.enter_context(served(model_of(run)))
        [status, answer], [_, other] = server.score(request), alone.score(request)
        assert status == 200
        for name, scores in expected.items():
            assert answer["predictions"][name] == pytest.approx(scores, abs=1e-6)
        assert answer["predictions"] == other["predictions"]
        model, single = server.scorer.model, alone.scorer.model
        assert model.rows() == single.rows()
        assert model.looked_up() == single.looked_up()
        assert sum(unseen for _, unseen in model.looked_up().values()) > 0
        assert model.stored()[0] > 0
        assert server.ask("/ready")[0] == 200


def answers(snapshots: RunFolder, folder: Path, rows: pd.DataFrame) -> tuple[list[Any], dict[int, Any]]:
    """Return the answers of a server while a run publishes, and the scores of each step.

    The second shard follows only after the first one has each version, so that it is ahead.
    """
    wanted = expected(snapshots, rows)
    assert min(np.abs(a - b).max() for a, b in pairwise(wanted.values())) > 1e-4
    copied, later = beginning(snapshots, folder, "checkpoints")
    first, *steps = wanted
    with ExitStack() as stack:
        ahead = stack.enter_context(serving(shard(copied, 0, 2)))
        behind = stack.enter_context(serving(shard(copied, 1, 2), follow=False))
        assert behind.follower is not None
        addresses = [ahead.server.address, behind.server.address]
        server, _ = stack.enter_context(asking(copied, addresses))
        clients = stack.enter_context(Clients(server.address, {"items": plain(rows)}, count=2))
        for step, version in zip(steps, later, strict=False):
            appear(version, copied / "checkpoints")
            eventually(lambda step=step: ahead.service.statistics().steps == step)  # type: ignore[misc]
            clients.some_more()
            behind.follower._update(step)
            at_step(server, step)
            clients.some_more()
        assert server.ask("/ready")[0] == 200
    assert {step for step, _ in clients.answers} == {first, *steps}
    return clients.answers, wanted


def mixed(answers: list[Any], wanted: dict[int, Any]) -> int:
    return sum(not np.allclose(scores, wanted[step], rtol=0, atol=1e-6) for step, scores in answers)


def test_each_answer_is_of_one_step_though_one_shard_is_ahead(
    snapshots: RunFolder, rows: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overlay, "FOLDED_ROWS", 3)
    assert mixed(*answers(snapshots, tmp_path, rows)) == 0


def test_a_shard_that_answers_with_its_newest_rows_would_be_noticed(
    snapshots: RunFolder, rows: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test before can fail."""
    peek = KeptRows.peek
    monkeypatch.setattr(KeptRows, "peek", lambda self, _, requests: peek(self, self.versions[-1], requests))
    assert mixed(*answers(snapshots, tmp_path, rows)) > 0


def test_a_server_goes_back_to_what_all_shards_have_and_they_keep_it(
    snapshots: RunFolder, rows: pd.DataFrame, tmp_path: Path
) -> None:
    wanted = expected(snapshots, rows)
    copied, later = beginning(snapshots, tmp_path, "checkpoints")
    first, second, third, fourth = wanted
    request = {"items": plain(rows)}

    def right(step: int) -> bool:
        status, answer = server.score(request)
        return (status, answer["step"]) == (200, step) and np.allclose(
            answer["predictions"]["clicked_probability"], wanted[step], rtol=0, atol=1e-6
        )

    with sharded(copied) as (_, server):
        follower = server.application.versions.follower
        assert follower is not None
        for version, step in zip(later, (second, third), strict=False):
            appear(version, copied / "checkpoints")
            at_step(server, step)
        eventually(lambda: follower.steps() == [first, second, third])
        assert server.scorer.model.history.steps == [first, second]
        assert follower.rollback(first) == first
        assert right(first)
        with pytest.raises(Exception, match=f"no version has step {fourth}"):
            follower.rollback(fourth)
        appear(later[2], copied / "checkpoints")
        eventually(lambda: follower.steps() == [first, second, third, fourth])
        assert right(first)
        assert follower.rollback(third) == third
        assert right(third)
        follower.release()
        at_step(server, fourth)
        assert right(fourth)
        assert follower.statistics.rollbacks == 2


def test_a_version_that_the_run_published_again_is_not_taken_for_the_shards_one(
    snapshots: RunFolder, rows: pd.DataFrame, tmp_path: Path
) -> None:
    """A manifest with another id, as a resumed run writes it: the server stays, and says why."""
    copied, later = beginning(snapshots, tmp_path, "checkpoints")
    first = Series(str(copied / "checkpoints")).steps()[0]
    with ExitStack() as stack:
        every = [stack.enter_context(serving(shard(copied, i, 2), follow=False)) for i in range(2)]
        server, follower = stack.enter_context(asking(copied, [one.server.address for one in every]))
        assert follower is not None
        version = every[0].service._rows.newest
        later_one = type(version)(first + 1, "another", 0.0)
        for link in follower._links.links:  # as if both had it
            link.versions = {**link.versions, later_one.id: later_one}
        (copied / "checkpoints" / f"step-{first + 1:08d}").mkdir()
        manifest = (copied / "checkpoints" / f"step-{first:08d}" / "manifest.json").read_bytes()
        (copied / "checkpoints" / f"step-{first + 1:08d}" / "manifest.json").write_bytes(manifest)
        with pytest.raises(Exception, match="another version of this step"):
            follower._take(first + 1)
        assert server.score({"items": plain(rows)})[1]["step"] == first
        assert later
