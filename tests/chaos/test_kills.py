"""SIGKILL at random instants; the long version is `python -m tests.chaos.kills --kills 200`."""

from __future__ import annotations

import random

import pytest

from tests.chaos.kills import run, run_cluster


@pytest.mark.chaos
def test_kills(capsys: pytest.CaptureFixture[str]) -> None:
    seed = random.SystemRandom().randrange(10**6)
    with capsys.disabled():
        print(f"\nseed {seed}: python -m tests.chaos.kills --seed {seed}")
    found = run(10**6, seed=seed, seconds=35)
    with capsys.disabled():
        print(found)
    assert found.kills >= 3
    assert found.snapshots_checked > 0
    assert found.finished > 0


@pytest.mark.chaos
@pytest.mark.timeout(400)
def test_kills_of_shards_workers_and_launcher(capsys: pytest.CaptureFixture[str]) -> None:
    seed = random.SystemRandom().randrange(10**6)
    with capsys.disabled():
        print(f"\nseed {seed}: python -m tests.chaos.kills --only cluster --seed {seed}")
    found = run_cluster(3, seed=seed, kinds=["sync"])
    with capsys.disabled():
        print(found)
    assert sum(found.kills.values()) >= 3
    assert found.snapshots_checked > 0
    assert found.finished > 0
