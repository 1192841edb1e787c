from __future__ import annotations

import json

from satrap.exchange.kernels import FLOAT32
from satrap.plan import Plan, WorkerRates, Workload, place
from satrap.plan.result import columns
from tests.plan.loads import load, topology

TEXT = """\
2 tables, 2 workers; counted over 7 steps of 2 x 30 samples

table  placement   dim       rows  ids/step  KiB/step   memory  instead
a      row_wise      8  1,000,000        15       0.3   19 MiB  table_wise no room, replicated no room
b      replicated    8     >= 100        10       0.2  3.8 KiB  row_wise +0.03 ms, table_wise +0.32 ms

all tables  time of a step  KiB/step  memory
as planned         1.16 ms       0.5  19 MiB
row_wise           1.18 ms       0.5  19 MiB  +0.03 ms
table_wise         1.19 ms       0.5  37 MiB  no room
replicated         1.13 ms       0.5  37 MiB  no room

  ids/step: unique ids of all workers; KiB/step: sent by the worker that sends most
  memory: rows and index at the fullest worker; workers have 29 MiB, given
  time of a step: lookups, updates and messages; instead: change if only this table is moved
  speeds, assumed: 0.00 GB/s, 200 us/message; million lookups, updates/s: 1, 1 (dim 8)
  rows >=: counted in these batches, a lower bound; use --run DIR or --rows TABLE=N"""
ONE = """\
table  dim       rows  ids/step   memory
a        8  1,000,000        15   37 MiB
b        8     >= 100        10  3.8 KiB"""


def plan(workers: int = 2, **changes: object) -> Plan:
    """Table b is in every batch and cheap to keep; of a there are too many rows for replicas."""
    tables = (load("a", dim=8, rows=10**6, rows_from="run"), load("b", dim=8, distinct_all=10))
    rates = {8: WorkerRates(1e6, 1e6)}
    return place(
        Workload(tables, 30, 7, forward=FLOAT32),
        topology(workers, 60_000_000 / workers, rates=rates, bandwidth=1e6, **changes),  # type: ignore[arg-type]
    )


def test_columns_stand_below_each_other() -> None:
    assert columns([["name", "n", "why"], ["a", "1,000", ""], ["bcd", "2", "so"]]) == [
        "name      n  why",
        "a     1,000",
        "bcd       2  so",
    ]


def test_the_report_shows_each_table_and_what_other_placements_cost() -> None:
    found = plan()
    lines = found.report().splitlines()
    assert lines[0] == "2 tables, 2 workers; counted over 7 steps of 2 x 30 samples"
    a, b = lines[3:5]
    assert a.split()[:5] == ["a", found.placements["a"], "8", "1,000,000", "15"]
    assert a.endswith("replicated no room")
    assert ">= 100" in b
    assert b.split()[1] == "replicated"
    saved = found.instead["b"]["row_wise"].seconds - found.cost.seconds
    assert f"row_wise +{1000 * saved:.2f} ms" in b
    slower = 1000 * (found.uniform["row_wise"].seconds - found.cost.seconds)
    [uniform] = [line for line in lines if line.startswith("row_wise ")]
    assert uniform.endswith(f"+{slower:.2f} ms")
    assert any(line.startswith("replicated ") and line.endswith("no room") for line in lines)
    assert "a lower bound" in lines[-1]
    assert max(map(len, lines)) <= 110


def test_the_whole_report() -> None:
    """A worker sends half of u = 10 ids of 8 bytes, rows of 32 and gradients of 16 bytes for row_wise."""
    assert plan().report() == TEXT
    assert "\n".join(plan(1).report().splitlines()[2:5]) == ONE


def test_without_a_choice_the_report_says_why() -> None:
    assert "one worker holds all rows, so there is no choice; the rows need 37 MiB" in plan(1).report()
    assert "with embedding.admission, tables must be row_wise" in plan(bounded_by="admission").report()
    assert plan(1).report().splitlines()[2].split() == ["table", "dim", "rows", "ids/step", "memory"]


def test_the_plain_form_holds_the_same() -> None:
    found = plan()
    plain = json.loads(json.dumps(found.to_dict()))
    assert {name: table["placement"] for name, table in plain["tables"].items()} == found.placements
    assert plain["tables"]["a"]["rows_from"] == "run"
    assert plain["tables"]["a"]["row_bytes"] == 16 + 4 + 19
    assert plain["tables"]["b"]["ids_per_sample"] == 20 / 30
    assert plain["tables"]["b"]["distinct_ids"] == {"worker": 10, "step": 10}
    assert plain["tables"]["a"]["instead"]["replicated"]["fits"] is False
    assert plain["planned"]["seconds"] == found.cost.seconds
    assert plain["planned"]["sent_bytes"] == found.cost.sent.tolist()
    assert sorted(plain["uniform"]) == ["replicated", "row_wise", "table_wise"]
    assert plain["speeds"]["rows_per_second"] == {"8": {"lookups": 1e6, "updates": 1e6}}
