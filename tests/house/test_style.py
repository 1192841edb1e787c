"""The size caps and manners of the source, held by numbers: `python -m tests.house.measure` shows them."""

from __future__ import annotations

import re
import statistics
from pathlib import Path

import pytest

from tests.house.measure import Report, measure, table

FILE_MEDIAN, FILE_CAP = 150, 600
FUNCTION_MEDIAN, FUNCTION_CAP = 10, 60
CLASS_CAP, PUBLIC_METHODS_CAP = 300, 15
CONSTRUCTOR_CAP, PARAMETERS_CAP = 12, 8

HANDED_OVER = {
    "data/prefetch.py",
    "checkpoint/background.py",
    "checkpoint/files/disk.py",
    "dense/memory/initial_weights.py",
    "train/state/coordinator.py",
    "exchange/servers/shard/snapshots.py",
    "rpc/server/unexpected.py",
    "runtime/numba_cache.py",
    "runtime/user_code.py",
    "openmetrics/endpoint.py",
    "serve/scoring/scorer.py",
}
"""Files whose one catch-all carries every error to whoever waits for the work of a thread, server or rank;
that of `machine_code.py` is for damaged files, which may raise anything while Numba reads them, and that of
`own_code.py` for what the user's own code raises: it becomes an error that names the line.
`initial_weights.py` repeats a constructor without what it tried, so an error of the constructor itself comes
again.
"""


@pytest.fixture(scope="module")
def report() -> Report:
    return measure()


def test_files_stay_readable(report: Report) -> None:
    assert statistics.median(n for n, _ in report.files) <= FILE_MEDIAN, table(report)
    assert [place for n, place in report.files if n > FILE_CAP] == []


def test_functions_stay_short(report: Report) -> None:
    assert statistics.median(n for n, _ in report.functions) <= FUNCTION_MEDIAN, table(report)
    assert [(n, place) for n, place in report.functions if n > FUNCTION_CAP] == []


def test_classes_stay_small(report: Report) -> None:
    assert [(n, place) for n, place in report.classes if n > PUBLIC_METHODS_CAP] == []
    assert over(report.class_lines, CLASS_CAP) == set()


def test_arguments_that_belong_together_are_grouped(report: Report) -> None:
    assert over(report.constructors, CONSTRUCTOR_CAP) == set()
    assert over(report.parameters, PARAMETERS_CAP) == set()


def over(sizes: list[tuple[int, str]], cap: int) -> set[str]:
    """Return what is over a cap, as `file name`."""
    return {re.sub(r":\d+", "", place) for size, place in sizes if size > cap}


def test_every_public_name_is_documented_and_typed(report: Report) -> None:
    assert report.undocumented == []
    assert report.unannotated == []


def test_nothing_in_the_source_can_run_foreign_code(report: Report) -> None:
    assert report.forbidden == []


def test_no_handler_swallows_everything(report: Report) -> None:
    assert {place.split(":")[0] for place in report.catch_alls} == HANDED_OVER
    assert len(report.catch_alls) == len(HANDED_OVER)


def test_the_environment_is_read_in_at_most_one_module(report: Report) -> None:
    assert len(report.environment) <= 1, sorted(report.environment)


BAD = '''
import os, pickle
def long(x):
    """Docstring
    of two lines."""
    y = 1
    return os.environ["A"]
class Open:
    def __init__(self, x: int, *, y: int) -> None:
        pass
    def method(self, *rest: int, **named: int) -> None:
        try:
            eval("1")
        except (ValueError, Exception):
            pass
        try:
            pass
        except BaseException:
            raise
'''


def test_the_measure_sees_each_fault(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(BAD, encoding="utf-8")
    found = measure(tmp_path)
    assert found.undocumented == ["bad.py", "bad.py:8 Open", "bad.py:11 method"]
    assert found.unannotated == ["bad.py:3 long"]
    assert found.forbidden == ["bad.py:2 pickle", "bad.py:13 eval"]
    assert found.catch_alls == ["bad.py:14"]
    assert found.environment == {"bad.py"}
    assert (5, "bad.py:3 long") in found.functions
    assert found.classes == [(1, "bad.py:8 Open")]
    assert found.class_lines == [(12, "bad.py:8 Open")]
    assert found.constructors == [(2, "bad.py:8 Open")]
    assert found.parameters == [(1, "bad.py:3 long"), (2, "bad.py:11 method")]
    assert over(found.class_lines, 11) == {"bad.py Open"}
    assert "catch_alls" in table(found)
