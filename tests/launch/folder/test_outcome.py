"""What metrics.json holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from satrap.launch.folder.outcome import RunOutcome
from satrap.train import Result

VALIDATION = {"auc": 0.7, "logloss": 0.5, "samples": 10.0}
TEST = {"auc": 0.6, "samples": 20.0}


def outcome(**parts: Any) -> RunOutcome:
    result = Result(VALIDATION, (VALIDATION,), 5, 100, 2.0, 50.0, 1, "patience", {0: 5}, {"sent": 3})
    return RunOutcome(Path("run"), result, **parts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("parts", "top"),
    [
        ({}, {"auc": 0.7, "logloss": 0.5}),
        ({"test": {}}, {"auc": 0.7, "logloss": 0.5}),
        ({"test": TEST}, {"auc": 0.6}),
    ],
)
def test_the_metrics_of_the_test_rows_stand_on_top_else_those_of_validation(
    parts: dict[str, Any], top: dict[str, float]
) -> None:
    assert outcome(**parts).metrics == {
        **top,
        "samples_per_second": 50.0,
        "samples": 100,
        "seconds": 2.0,
        "steps": 5,
        "refused": 1,
        "stopped": "patience",
        "staleness": {0: 5},
        "traffic": {"sent": 3},
        "validation": VALIDATION,
        "test": parts.get("test", {}),
    }
