"""The part of a survey inside pytest: whose calls follow, and how long each test took."""

from __future__ import annotations

import sys
from typing import Any

import pytest

_traced: Any = sys.modules["sitecustomize"]
_seconds: dict[str, float] = {}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    _traced.begin(item.nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _seconds[report.nodeid] = _seconds.get(report.nodeid, 0.0) + report.duration
    if report.failed:
        _traced.write("failed", report.nodeid)
    if report.when == "teardown" and not report.failed:
        _traced.write("passed", report.nodeid, round(_seconds[report.nodeid], 3))
