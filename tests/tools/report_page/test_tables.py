import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from satrap.tools.report_page import tables
from satrap.tools.report_page.element import Html
from satrap.tools.report_page.run import RunReport, TableSize
from tests.support.pages import rows
from tests.tools.report_page.runs import full


def test_metrics_beside_the_floor_with_differences_to_the_first_run() -> None:
    found = rows(tables.metrics([full(), full("runs/b", auc=0.7)]))
    assert found == [
        ["", "runs/a", "runs/b", "logistic regression"],
        ["test AUC", "0.7500", "0.7000 (-0.0500)", "0.7000"],
        ["test logloss", "0.5000", "0.5000 (+0.0000)", ""],
        ["validation AUC", "0.7400", "0.6900 (-0.0500)", ""],
    ]
    assert tables.metrics([RunReport("a")]) == []
    other = replace(full("runs/b"), recipe={"about.floor.auc": 0.9})
    assert rows(tables.metrics([full(), other]))[0] == ["", "runs/a", "runs/b"]


def test_better_and_worse() -> None:
    def kind(key: str, value: float) -> list[str]:
        return re.findall('class="(.*?)"', str(tables._metric(key, value, 0.5, 1)))

    assert kind("auc", 0.6) == kind("logloss", 0.4) == kind("income/logloss", 0.4) == ["better"]
    assert kind("auc", 0.4) == kind("rmse", 0.6) == ["worse"]
    assert kind("auc", 0.50004) == kind("calibration", 0.9) == kind("profit", 0.9) == []
    assert kind("auc", 0.50006) == ["better"]


@pytest.mark.parametrize(
    ("recipe", "counts", "why"),
    [
        ({}, {"samples": 90}, "runs/b and runs/a were evaluated on different rows"),
        ({}, {"samples": 100, "positives": 7}, "on different rows"),
        ({"about.title": "Census"}, {}, "on different rows"),
        ({"data.split.validation": [7]}, {}, "on different rows"),
        ({"labels": [{"name": "bought"}]}, {}, "on different labels"),
        ({"labels": [{"name": "clicked", "threshold": 3}]}, {}, "on different labels"),
    ],
)
def test_differences_between_other_rows_or_labels_have_no_colour_and_a_warning(
    recipe: dict[str, object], counts: dict[str, int], why: str
) -> None:
    same = {"about.title": "Adult", "labels": ["clicked"], "data.split.validation": [8]}
    test = {"auc": 0.7, "samples": 100, "positives": 30}
    first = RunReport("runs/a", same, metrics={"test": test})
    other = RunReport("runs/b", {**same, **recipe}, metrics={"test": {**test, "auc": 0.8, **counts}})
    found = "".join(tables.metrics([first, other]))
    assert "0.8000 <span>(+0.1000)</span>" in found
    assert why in found
    assert "does not compare the models" in found


def test_the_same_rows_and_labels_written_in_another_way_are_compared() -> None:
    one = {"labels": ["clicked"], "data.train": "/a/rows.csv", "about.title": "Adult"}
    label = {"name": "clicked", "kind": "binary", "mean": 0.3, "column": None}
    two = {"labels": [label], "data.train": "/b/train.parquet", "data.split": None}
    test = {"auc": 0.7, "samples": 100, "positives": 30}
    runs = [RunReport(name, recipe, metrics={"test": test}) for name, recipe in (("a", one), ("b", two))]
    runs[1] = replace(runs[1], metrics={"test": {**test, "auc": 0.8}})
    [found] = tables.metrics(runs)
    assert "(+0.1000)" in found
    assert 'class="better"' in found


def test_a_table_has_its_numbers_to_the_right() -> None:
    parts = "<tr><th></th><th{}>a</th></tr><tr><td>x</td><td{}>1</td></tr>"
    around = '<div class="scroll"><table>{}</table></div>'
    right = ' class="number"'
    assert tables.table(["", "a"], [["x", 1]]) == around.format(parts.format(right, right))
    assert tables.table(["", "a"], [["x", 1]], numbers=False) == around.format(parts.format("", ""))


def test_metrics_that_only_one_run_has() -> None:
    runs = [RunReport("a", metrics={"test": {"auc": 0.5, "ne": math.nan}})]
    runs.append(RunReport("b", metrics={"test": {"logloss": 0.4, "ne": 0.9}}))
    assert rows(tables.metrics(runs)) == [
        ["", "a", "b"],
        ["test AUC", "0.5000", ""],
        ["test NE", "", "0.9000"],
        ["test logloss", "", "0.4000"],
    ]


def test_sizes_of_tables_and_their_sums() -> None:
    assert rows(tables.table_sizes([full()])) == [
        ["table", "rows", "bytes", "bytes/row"],
        ["user", "10", "1000 B", "100"],
        ["item", "5", "2.0 KiB", "410"],
        ["all", "15", "3.0 KiB", ""],
    ]


def test_only_keys_that_differ_are_listed() -> None:
    other = replace(
        full("runs/b"), recipe={**full().recipe, "training.seed": 2, "training.steps": 5, "about.title": "x"}
    )
    assert rows(tables.differences([full(), other])) == [
        ["", "runs/a", "runs/b"],
        ["training.seed", "1", "2"],
        ["training.steps", "", "5"],
    ]
    assert "None" in tables.differences([full(), full("b")])[0]
    assert tables.differences([full()]) == []


def test_sizes_of_tables_side_by_side() -> None:
    other = RunReport("b", tables={"item": TableSize(0, 100), "tag": TableSize(1000, 2000)})
    assert rows(tables.table_sizes([full(), RunReport("a"), other])) == [
        [
            "table",
            *(f"{run}: {what}" for run in ("runs/a", "a", "b") for what in ("rows", "bytes", "bytes/row")),
        ],
        ["user", "10", "1000 B", "100", *[""] * 6],
        ["item", "5", "2.0 KiB", "410", "", "", "", "0", "100 B", "100"],
        ["tag", *[""] * 6, "1,000", "2.0 KiB", "2"],
        ["all", "15", "3.0 KiB", "", "", "", "", "1,000", "2.1 KiB", ""],
    ]
    assert rows(tables.table_sizes([full(), other]))[0][:3] == ["table", "runs/a: rows", "runs/a: bytes"]
    assert tables.table_sizes([RunReport("a")]) == []


def test_what_was_run() -> None:
    asked = {
        "cluster.exchange": "servers",
        "cluster.workers": 2,
        "cluster.shards": 3,
        "about.title": "Clicks",
    }
    run = replace(full(), recipe={**full().recipe, **asked})
    run = replace(run, metrics={**run.metrics, "samples_per_second": 1999.6})
    assert rows(tables.what_was_run([run])) == [
        ["", "runs/a"],
        ["data", "Clicks"],
        ["model", "dnn"],
        ["mode", "hybrid, staleness 4"],
        ["processes", "servers: 2 workers, 3 shards"],
        ["started", "2026-11-23 10:00 UTC"],
        ["ended", "all epochs done"],
        ["steps", "200"],
        ["samples", "2,000"],
        ["training time", "0:10"],
        ["samples/s", "2,000"],
        ["steps refused", "0"],
    ]


def test_what_was_run_in_another_way_or_not_to_its_end() -> None:
    of = {"cluster.exchange": "collective", "cluster.workers": 2, "cluster.shards": 3}
    curves = {"loss": [(50, 0.7), (100, 0.6), (1500, 0.5)], "rows": [(50, 1.0)]}
    runs = [RunReport("a", recipe={"training.mode": "sync", "cluster.exchange": "local"})]
    runs.append(RunReport("b", recipe={"training.mode": "async", **of}, curves=curves))
    assert rows(tables.what_was_run(runs)) == [
        ["", "a", "b"],
        ["mode", "sync", "async, staleness None"],
        ["processes", "one", "collective: 2 workers"],
        ["ended", *["not yet, or killed"] * 2],
        ["steps", "", "1,500"],
    ]


def test_traffic_and_machine() -> None:
    assert rows(tables.traffic([full()])) == [["", "runs/a"], ["unique ids / ids", "0.5"]]
    assert rows(tables.machines([full()])) == [["", "runs/a"], ["torch", "2.13.0"], ["memory", "16 GiB"]]
    some = replace(full(), sessions=[{"cores": 2.0}]), replace(full("runs/b"), sessions=[{"cores": 1.5}])
    assert rows(tables.machines(some))[1] == ["cores", "2", "1.5"]


def test_figures_of_traffic_and_of_machines_as_text() -> None:
    found = {"shard_rows": [1000, 2000], "shard_busy": [0.5, 0.25], "resent": 1234, "snapshots": 0}
    other = {"lookup_seconds": 0.00123456, "unknown": 1}
    assert rows(tables.traffic([RunReport("a", metrics={"traffic": t}) for t in (found, other, None)])) == [
        ["", "a", "a", "a"],
        ["mean seconds of a lookup", "", "0.001235", ""],
        ["messages sent again", "1,234", "", ""],
        ["rows of each shard", "1,000, 2,000", "", ""],
        ["busy fraction of each shard", "0.5, 0.25", "", ""],
    ]
    assert tables.traffic([RunReport("a")]) == []
    sessions = [{"torch": "1"}, {"torch": "2"}, {"torch": "3", "cpu_count": 8, "memory": "much"}]
    assert rows(tables.machines([RunReport("a"), RunReport("b", sessions=sessions)])) == [
        ["", "a", "b"],
        ["torch", "", "3"],
        ["cpu count", "", "8"],
        ["memory", "", "much"],
        ["sessions", "", "3"],
    ]


@pytest.mark.parametrize(
    ("section", "numbers"),
    [
        (tables.what_was_run, False),
        (tables.machines, False),
        (tables.differences, False),
        (tables.traffic, True),
        (tables.metrics, True),
        (tables.table_sizes, True),
    ],
)
def test_tables_of_numbers_are_aligned(
    section: Callable[[Sequence[RunReport]], list[Html]], numbers: bool
) -> None:
    found = "".join(section([full(), replace(full("b"), recipe={"training.seed": 7})]))
    assert "<td>" in found
    assert ('class="number"' in found) is numbers


def test_recipes_and_what_is_left_out() -> None:
    runs = [RunReport("a", recipe_text="x: 1", missing=["One.", "Two."]), RunReport("b", missing=["Three."])]
    assert tables.recipes(runs)[0] == "<details><summary>a</summary><pre>x: 1</pre></details>"
    assert tables.missing(runs) == ["<ul><li>a: One.</li><li>a: Two.</li><li>b: Three.</li></ul>"]
    assert tables.missing(runs[1:]) == ["<ul><li>Three.</li></ul>"]
    assert tables.missing([RunReport("a")]) == []
