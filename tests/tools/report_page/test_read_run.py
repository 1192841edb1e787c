import json
import shutil
from pathlib import Path

import pytest

from satrap import launch
from satrap.checkpoint import Series
from satrap.checkpoint.files.storage import Storage
from satrap.checkpoint.manifest import read_manifest
from satrap.config import load
from satrap.errors import ConfigError
from satrap.tools.report_page.read_run import report
from tests.launch.killed import restored
from tests.launch.runs import RECIPE, make_recipe


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reporting")
    launch.train(load(make_recipe(folder)), str(folder / "run"))
    return folder / "run"


def test_everything_comes_from_the_files_of_the_run(run: Path) -> None:
    said: list[str] = []
    found = report(str(run), notice=said.append)
    assert found.metrics == json.loads((run / "metrics.json").read_text())
    assert found.recipe["model.hidden"] == [8]
    assert found.recipe["training.staleness"] == 2
    assert len(found.sessions) == 1
    assert len(found.curves["validation/auc"]) == 2
    manifest = read_manifest(Storage(str(run / "model")))
    assert {name: (table.rows, table.bytes) for name, table in found.tables.items()} == {
        entry.table: (entry.rows, entry.bytes) for entry in manifest.files.values() if entry.table
    }
    assert found.scores is not None
    assert found.scores.part == "validation"
    assert found.scores.labels["clicked"].auc == pytest.approx(found.metrics["validation"]["auc"], abs=1e-4)
    assert found.missing == [
        "Figures of steps are missing: metrics.jsonl has none; it gets a line every 50 steps."
    ]
    assert said == [f"{run}: scoring the validation rows"]


def test_quick_scores_nothing_and_a_folder_that_holds_no_run_is_refused(run: Path, tmp_path: Path) -> None:
    found = report(str(run), score=False)
    assert found.scores is None
    assert any("--quick" in text for text in found.missing)
    with pytest.raises(ConfigError, match="not a run folder"):
        report(str(tmp_path))


def test_a_killed_run_is_reported_from_its_newest_snapshot(tmp_path: Path) -> None:
    run = restored(tmp_path).parent / "run"
    found = report(str(run))
    assert found.metrics["validation"]["auc"] == found.curves["validation/auc"][-1][1]
    assert "stopped" not in found.metrics
    series = Series(str(run / "checkpoints"))
    step = series.latest()
    assert step is not None
    rows = series.manifest(step).rows()
    assert {name: table.rows for name, table in found.tables.items()} == rows
    assert found.scores is not None
    assert found.scores.rows == 200
    assert any("has not ended" in text for text in found.missing)


def test_what_is_gone_is_said(run: Path, tmp_path: Path) -> None:
    """A folder from which everything was removed but the recipe, whose data is gone too."""
    shutil.copytree(run, tmp_path / "run")
    for name in ("model", "tensorboard"):
        shutil.rmtree(tmp_path / "run" / name)
    for name in ("metrics.json", "metrics.jsonl", "sessions.jsonl"):
        (tmp_path / "run" / name).unlink()
    found = report(str(tmp_path / "run"))
    assert (found.curves, found.tables, found.scores, list(found.sessions)) == ({}, {}, None, [])
    assert len(found.missing) == 4


def test_without_validation_rows_the_test_rows_are_scored_and_without_any_none(tmp_path: Path) -> None:
    for split, part in (("test: [9]", "test"), ("", None)):
        place = tmp_path / str(part)
        text = RECIPE.replace("validation: [8], test: [9]", split)
        launch.train(load(make_recipe(place, text), ["training.steps=2"]), str(place / "run"))
        found = report(str(place / "run"))
        assert (found.scores.part if found.scores else None) == part
    assert any("has no validation or test rows" in text for text in found.missing)


def test_missing_data_leaves_the_scores_out(tmp_path: Path) -> None:
    launch.train(load(make_recipe(tmp_path), ["training.steps=2"]), str(tmp_path / "run"))
    (tmp_path / "rows.csv").unlink()
    found = report(str(tmp_path / "run"))
    assert found.scores is None
    assert found.tables
    assert any("left out:" in text for text in found.missing)
