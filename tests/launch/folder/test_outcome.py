"""What metrics.json holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from satrap.launch.folder.outcome import RunOutcome
from satrap.launch.folder.run_folder import RunFolder
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


def test_an_outcome_and_its_folder_can_be_read(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    of_test = {"auc": 0.6, "gauc": float("nan")}
    done = RunOutcome(folder, outcome().result, of_test)
    folder.write_metrics(done.metrics)
    assert repr(done).startswith(f"RunOutcome('{tmp_path}', test: AUC 0.6000, GAUC -, Result(steps=5")
    assert repr(folder) == f"RunFolder('{tmp_path}', stopped='patience')"
    assert "<td>AUC</td><td>0.6000</td>" in done._repr_html_()
    assert "<td>test</td><td>GAUC</td><td>-</td>" in folder._repr_html_()
    assert "not ended" in RunFolder(tmp_path / "none")._repr_html_()
