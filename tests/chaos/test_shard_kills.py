"""Shards that die come back; the long version is `python -m tools_dev.chaos.shard_kills`."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from tests.launch.runs import RECIPE, make_recipe
from tools_dev.chaos.shard_kills import run

EXACT = ["training.mode=sync", "cluster.workers=2", "checkpoint.durability=journal"]


@pytest.mark.chaos
def test_with_a_journal_a_sync_run_whose_shards_are_killed_ends_with_the_same_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = random.SystemRandom().randrange(10**6)
    with capsys.disabled():
        print(f"\nseed {seed}")
    recipe = make_recipe(
        tmp_path, RECIPE.replace("epochs: 2", "epochs: 40, patience: null").replace("[8]", "[8]", 1)
    )
    found = run(recipe, tmp_path, EXACT, kills=3, seed=seed)
    assert found.kills >= 2, found
    assert found.same_bytes, found
    assert found.test == found.undisturbed
    lost = [
        n
        for n in found.notices
        if re.fullmatch(
            r"\[shard \d\] lost; restarting from the start of the run \+ journal \(\d+ updates\)", n
        )
    ]
    assert len(lost) >= found.kills - 1  # one that dies before it has printed it says nothing
    assert not (tmp_path / "killed" / "journals").exists()


@pytest.mark.chaos
def test_without_a_journal_all_go_on_from_the_newest_snapshot(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path, RECIPE.replace("epochs: 2", "epochs: 40, patience: null"))
    settings = ["training.mode=sync", "cluster.workers=2", "checkpoint.every_steps=25"]
    found = run(recipe, tmp_path, settings, kills=2, seed=3)
    assert found.kills >= 1, found
    assert found.same_bytes, found
    again = [n for n in found.notices if "all workers restart from" in n and "steps are repeated" in n]
    assert len(again) >= 1, found.notices
