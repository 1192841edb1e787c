"""Seeds drive messages that get lost and shards that die: each update once, staleness exact, right table."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.sim.cluster import SimCluster
from tests.support.examples import THOROUGH

CASES = [
    (1, 1, 4, 0.0),
    (1, 2, 0, 0.05),
    (2, 3, 4, 0.05),
    (3, 2, 1, 0.15),
    (2, 1, None, 0.1),
    (1, 4, None, 0.05),
    (3, 2, None, 0.15),
]
"""Shards, workers, staleness (None: sync), faults."""


def simulate(place: Path, seed: int, case: tuple[int, int, int | None, float], steps: int) -> SimCluster:
    shards, workers, staleness, fault = case
    cluster = SimCluster(
        place,
        seed,
        shards=shards,
        workers=workers,
        steps=steps,
        staleness=staleness,
        fault=fault,
        crash=0.01 if fault else 0.0,
    )
    cluster.run()
    return cluster


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("given", [*(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2)), None])
def test_each_update_is_applied_once_and_each_lookup_sees_what_it_must(
    tmp_path: Path, case: tuple[int, int, int | None, float], given: int | None
) -> None:
    seed = random.SystemRandom().randrange(10**9) if given is None else given
    print(f"seed {seed}, case {case}")  # shown if it fails
    steps = 20 if given is None and not THOROUGH else 60
    cluster = simulate(tmp_path, seed, case, steps)
    assert len(cluster.history.lookups) == steps * case[1]


def test_messages_do_get_lost_and_shards_do_die(tmp_path: Path) -> None:
    """In some runs each shard dies twice; of which seeds, changes with the code."""
    runs = (simulate(tmp_path / str(seed), seed, CASES[6], 60) for seed in range(3, 43))
    assert any(
        cluster.world.faults > 1000
        and all(shard.crashes > 1 and shard.recovered > 100 for shard in cluster.shards)
        for cluster in runs
    )


def test_a_seed_is_a_run(tmp_path: Path) -> None:
    runs = [simulate(tmp_path / str(n), 5, CASES[3], 12) for n in range(2)]
    assert runs[0].world.now == runs[1].world.now
    assert [s.crashes for s in runs[0].shards] == [s.crashes for s in runs[1].shards]


def test_the_validator_sees_a_lookup_that_saw_too_much_or_too_little(tmp_path: Path) -> None:
    cluster = simulate(tmp_path, 1, CASES[0], 30)
    with pytest.raises(AssertionError):
        cluster.history.check(1, 3, sync=False)
    with pytest.raises(AssertionError):
        cluster.history.check(1, 5, sync=False)
