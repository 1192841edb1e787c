"""Metrics count what was answered, and have names that are promised."""

from __future__ import annotations

import pandas as pd

from satrap.openmetrics import METRICS
from satrap.serve.metrics import server_values, shadow_values
from satrap.serve.shadow import Compared, ShadowStatistics
from satrap.serve.versions.watch import FollowerStatistics
from tests.serve.requests import plain
from tests.serve.served import Served


def test_requests_rows_and_missing_ids_are_counted(server: Served, rows: pd.DataFrame) -> None:
    def values() -> dict[str, float]:
        found = server_values(server.scorer, server.application, FollowerStatistics())
        assert found.keys() - {"satrap_role"} == {
            metric.name
            for metric in METRICS
            if metric.name.startswith("satrap_serve_") and "shadow" not in metric.name
        }
        return {
            "answers": found["satrap_serve_answers"].get("200", 0),
            "refused": found["satrap_serve_answers"].get("422", 0),
            "items": found["satrap_serve_items"],
            "books": found["satrap_serve_looked_up_ids"].get("book", 0),
            "missing": found["satrap_serve_missing_ids"].get("book", 0),
            "network": found["satrap_serve_stage_seconds"]["network"],
            "parse": found["satrap_serve_stage_seconds"]["parse"],
        }

    columns = {name: column[:3] for name, column in plain(rows).items()}
    books = columns["book"]
    before = values()
    assert server.score({"items": columns | {"book": [books[0], 7, 7]}})[0] == 200
    assert server.score({"items": columns | {"age": ["x"] * 3}})[0] == 422
    after = values()
    changes = {name: after[name] - before[name] for name in after}
    assert changes.pop("network") > 0
    assert changes.pop("parse") > 0
    assert changes == {"answers": 1, "refused": 1, "items": 3, "books": 2, "missing": 1}


def test_a_shadow_has_metrics_of_its_own(server: Served) -> None:
    statistics = ShadowStatistics(step=7, answers=3, dropped=2, failed=1)
    statistics.predictions["x"] = Compared(10, 0.5, 0.25, 0.3)
    found = shadow_values(statistics)
    assert found.keys() == {metric.name for metric in METRICS if "shadow" in metric.name}
    assert list(found.values()) == [7, 3, 2, 1, {"x": 0.25}, {"x": 0.5}, {"x": 0.3}]
