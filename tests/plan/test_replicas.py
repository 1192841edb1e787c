from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from satrap.exchange.kernels import BFLOAT16, row_bytes
from satrap.plan import TableLoad, Workload
from satrap.plan.replicas import MOST_BYTES, MOST_IDS, SAMPLES, ReplicaChoice, choose, described, report
from tests.plan.loads import load


def held(*tables: TableLoad, workers: int = 2, samples: int = 800, **fixed: ReplicaChoice) -> list[str]:
    """The tables that every worker holds; 4 steps were counted, by default all."""
    choices = choose(Workload(tables, batch_size=100, steps=4), workers, samples, fixed)
    assert list(choices) == [table.name for table in tables]
    return [name for name, choice in choices.items() if choice.replicated]


@pytest.mark.parametrize(
    ("table", "samples", "expected"),
    [
        ({"rows": MOST_IDS, "late": 500}, 800, True),  # all samples were counted
        ({"rows": MOST_IDS + 1}, 800, False),
        ({"rows": 100, "late": 50}, 80_000, True),  # sorted by id
        ({"rows": 100, "late": 50}, 80_001, False),
        ({"rows": 100, "late": 25}, 80_000, True),
        ({"rows": 100, "late": 29}, 8_000_000, True),  # about the root of the samples
        ({"rows": 100, "late": 30}, 8_000_000, False),
        ({"rows": 100, "late": 50, "most": MOST_IDS}, SAMPLES, True),  # but there are no more than these
        ({"rows": 100, "most": 10**6}, SAMPLES, True),  # of many buckets, few are used
        ({"rows": 100, "late": 50, "most": 10**6}, SAMPLES, False),
        ({"rows": 10**6, "most": 200}, SAMPLES, True),
    ],
)
def test_tables_with_few_ids_are_held_by_every_worker(
    table: dict[str, Any], samples: int, expected: bool
) -> None:
    assert held(load(**table), samples=samples) == ["t"] * expected


def test_the_smallest_tables_come_first_until_the_bytes_of_a_step_are_used() -> None:
    each = 8 + row_bytes(BFLOAT16, 64)
    wide = load("wide", dim=64, rows=5000, distinct=0.6 * MOST_BYTES / each)
    other = replace(wide, name="other", rows=4999)
    small = load("small", rows=3, distinct=3)
    assert held(wide, other, small) == ["other", "small"]
    assert held(wide, other, small, workers=3) == ["small"]  # each sends to two
    assert held(wide, other, small, workers=10**6) == []


def test_what_is_fixed_stays_and_uses_no_bytes() -> None:
    each = 8 + row_bytes(BFLOAT16, 4)
    one = load("one", rows=5000, distinct=MOST_BYTES / each)
    two, few = replace(one, name="two"), load("few", rows=2, distinct=2)
    assert held(one, two, few, two=ReplicaChoice(True, "given"), few=ReplicaChoice(False, "given")) == [
        "one",
        "two",
    ]


def test_each_table_has_its_reason() -> None:
    wide = load("wide", dim=64, rows=9000, distinct=9000)
    tables = (load("few", rows=7), load("many", rows=MOST_IDS, late=MOST_IDS // 2), wide)
    choices = choose(Workload(tables, batch_size=100, steps=4), 2, 1600)
    assert described(choices) == (
        "every worker holds few, which are never stale; shards hold many (many ids: about 20,000, more than "
        "10,000); shards hold wide (many bytes: each of 2 workers would send more than 1.0 MiB a step)"
    )
    assert report(choices).splitlines()[1:] == [
        "table  held by       why",
        "few    every worker  few ids: about 7",
        "many   shards        many ids: about 20,000, more than 10,000",
        "wide   shards        many bytes: each of 2 workers would send more than 1.0 MiB a step",
    ]
    assert described({"few": choices["few"]}).endswith("never stale; no shard is needed")
