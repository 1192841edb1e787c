import json
import math
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from satrap import launch
from satrap.checkpoint import Series
from satrap.config import load
from satrap.errors import ConfigError
from satrap.launch.folder.run_folder import OWN, RunFolder, locked
from satrap.launch.scoring import model_place
from tests.launch.runs import make_recipe


def test_claim_writes_the_recipe_and_numbers_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load(make_recipe(tmp_path))
    monkeypatch.chdir(tmp_path)
    first, second = RunFolder.claim(recipe), RunFolder.claim(recipe)
    assert (str(first), str(second)) == ("runs/clicks-1", "runs/clicks-2")
    assert str(RunFolder.claim(recipe, name="quickstart")) == "runs/quickstart-1"
    assert first.recipe().resolved() == recipe.resolved()


@pytest.mark.parametrize("name", OWN)
def test_a_folder_with_any_part_of_a_run_is_occupied(tmp_path: Path, name: str) -> None:
    recipe = load(make_recipe(tmp_path))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).write_text("kept")
    with pytest.raises(ConfigError, match="already holds a run"):
        RunFolder.claim(recipe, tmp_path / "run")
    assert (tmp_path / "run" / name).read_text() == "kept"


def test_a_folder_with_other_files_is_free_and_keeps_them(tmp_path: Path) -> None:
    recipe = load(make_recipe(tmp_path))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    folder = RunFolder.claim(recipe, tmp_path / "run")
    folder.curves.mkdir()
    folder.discard()
    assert [path.name for path in folder.path.iterdir()] == ["notes.txt"]


def test_discard_leaves_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load(make_recipe(tmp_path))
    monkeypatch.chdir(tmp_path)
    empty, measured = RunFolder.claim(recipe), RunFolder.claim(recipe)
    measured.history_file.write_text("{}\n")
    measured.discard()
    empty.discard()
    assert [path.name for path in Path("runs").iterdir()] == ["clicks-2"]
    assert measured.recipe_file.exists()


def test_metrics_are_valid_json(tmp_path: Path) -> None:
    folder = RunFolder.claim(load(make_recipe(tmp_path)), tmp_path / "run")
    folder.write_metrics({"auc": math.nan, "staleness": {4: 2}})
    assert json.loads(folder.metrics_file.read_text()) == {"auc": None, "staleness": {"4": 2}}
    assert {path.name for path in folder.path.iterdir()} == {"recipe.yaml", "metrics.json"}


def test_open_wants_a_finished_run(tmp_path: Path) -> None:
    folder = RunFolder.claim(load(make_recipe(tmp_path)), tmp_path / "run")
    with pytest.raises(ConfigError, match="model is missing"):
        RunFolder.open(folder.path)
    folder.model.mkdir()
    assert RunFolder.open(folder.path).model == folder.model


def test_a_feed_is_a_run_to_score_with(tmp_path: Path) -> None:
    """At a URL, without the run folder; what counts as missing is known, too."""
    place = f"memory://{tmp_path.name}/clicks/feed"
    changes = [f"publish.url={place}", "data.missing=['-', '']"]
    trained = launch.train(load(make_recipe(tmp_path), changes), str(tmp_path / "run")).folder
    feed = RunFolder.open(place)
    assert (str(feed), feed.name, trained.name) == (place, "clicks", "run")
    assert (feed.knows_rows(), trained.knows_rows()) == (False, True)
    assert feed.recipe().sections.data.missing == ["-", ""]
    step = Series(place).latest()
    answers = []
    for number, (run, step_) in enumerate([(feed, None), (feed, step), (trained, step)]):
        out = tmp_path / f"{number}.csv"
        launch.predict(run, [str(tmp_path / "rows.csv")], str(out), step=step_)
        answers.append(pd.read_csv(out)["clicked_probability"].to_numpy())
    np.testing.assert_allclose(answers[:2], [answers[2]] * 2, rtol=0, atol=1e-6)


def test_a_run_that_has_only_published_so_far_can_score(tmp_path: Path) -> None:
    trained = launch.train(load(make_recipe(tmp_path), ["publish.every=60m"]), str(tmp_path / "run")).folder
    shutil.rmtree(trained.model)
    run = RunFolder.open(trained.path)
    step = Series(str(run.feed)).latest()
    assert model_place(run, run.recipe()) == str(run.feed / f"step-{step:08d}")


def test_snapshots_alone_are_no_run(tmp_path: Path) -> None:
    changes = ["checkpoint.every_steps=5"]
    run = launch.train(load(make_recipe(tmp_path), changes), str(tmp_path / "run")).folder
    for place in (run.checkpoints, "memory://nothing"):
        with pytest.raises(ConfigError, match="not a run folder"):
            RunFolder.open(place)


def test_why_a_run_ended(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for text, why in ((None, ""), ("{", ""), ("{}", ""), ('{"stopped": "patience"}', "patience")):
        if text is not None:
            folder.metrics_file.write_text(text)
        assert folder.stopped == why


def test_one_process_is_at_work_in_a_folder(tmp_path: Path) -> None:
    with locked(tmp_path / "a" / "b", "search"):
        with (
            pytest.raises(ConfigError, match="another search is using the output folder"),
            locked(tmp_path / "a" / "b", "search"),
        ):
            pass
        assert (tmp_path / "a" / "b" / "lock").stat().st_mode & 0o777 == 0o600
    with locked(tmp_path / "a" / "b", "search"):
        pass
    (tmp_path / "file").touch()
    with (
        pytest.raises(ConfigError, match="cannot write the output folder: File exists"),
        locked(tmp_path / "file", "x"),
    ):
        pass


def test_an_output_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    with pytest.raises(ConfigError, match="the output is a file, not a folder"):
        RunFolder.claim(load(make_recipe(tmp_path)), tmp_path / "run")
