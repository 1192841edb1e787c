import re
from collections.abc import Sequence
from dataclasses import replace

from satrap.report.page import tables
from satrap.report.page.element import Html
from satrap.report.page.run import RunReport
from tests.report.page.runs import full


def rows(found: Sequence[Html]) -> list[list[str]]:
    """Return the cells of a section's tables, row by row, as text."""
    texts = []
    for row in re.findall(r"<tr>(.*?)</tr>", "".join(found)):
        cells = re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row)
        texts.append([re.sub(r"<[^>]+>", "", cell) for cell in cells])
    return texts


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
    assert kind("auc", 0.50001) == kind("calibration", 0.9) == []


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
    assert "Nothing" in tables.differences([full(), full("b")])[0]
    assert tables.differences([full()]) == []


def test_what_was_run() -> None:
    facts = dict(rows(tables.what_was_run([full()]))[1:])
    assert facts["ended"] == "all passes done"
    assert facts["started"] == "2026-11-23 10:00 UTC"
    assert (facts["steps"], facts["samples/s"], facts["time of training"]) == ("200", "200", "0:10")
    assert facts["mode"] == "hybrid, staleness 4"
    killed = replace(full(), metrics={})
    assert dict(rows(tables.what_was_run([killed]))[1:])["steps"] == "100"


def test_traffic_and_machine() -> None:
    assert rows(tables.traffic([full()])) == [["", "runs/a"], ["distinct ids / ids", "0.5"]]
    assert rows(tables.machines([full()])) == [["", "runs/a"], ["torch", "2.13.0"], ["memory", "16 GiB"]]
    some = replace(full(), sessions=[{"cores": 2.0}]), replace(full("runs/b"), sessions=[{"cores": 1.5}])
    assert rows(tables.machines(some))[1] == ["cores", "2", "1.5"]
