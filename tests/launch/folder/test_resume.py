"""Which run goes on, and what is refused."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from satrap import launch
from satrap.checkpoint import Series
from satrap.checkpoint.files.storage import Storage
from satrap.checkpoint.manifest import read_manifest
from satrap.config import Recipe, load
from satrap.errors import ConfigError, DataError
from satrap.launch.folder.resume import begun, checkpointing
from satrap.launch.folder.run_folder import RunFolder
from satrap.train import Observer, Progress
from tests.launch.killed import STEPPED, history, killed, restored, undisturbed
from tests.launch.runs import RECIPE, frame, make_recipe
from tests.support.interruptions import KillAt, KilledError


@pytest.mark.parametrize("at", [10, 16, 25, 31])
def test_the_run_folder_is_that_of_an_undisturbed_run(at: int, tmp_path: Path) -> None:
    whole, recipe = undisturbed(tmp_path), restored(tmp_path, at)
    outcome = launch.train(load(recipe), str(recipe.parent / "run"), resume=True)
    assert outcome.test == whole.test
    assert outcome.result.history == whole.result.history
    runs = outcome.folder.path, whole.folder.path
    assert history(runs[0]) == history(runs[1])
    for name in ("model.safetensors", "optimizer.safetensors", "table-000.arrow", "table-001.arrow"):
        files = [next((run / "model").glob(f"data-*/{name}")) for run in runs]
        assert files[0].read_bytes() == files[1].read_bytes(), name


def test_the_recipe_may_be_left_out(tmp_path: Path) -> None:
    run = restored(tmp_path).parent / "run"
    assert launch.train(None, str(run), resume=True).result.stopped == "epochs"


@pytest.mark.parametrize(("at", "pass_", "evaluations"), [(10, 1, "0 evaluations"), (25, 2, "1 evaluation")])
def test_it_says_from_where_a_run_goes_on(tmp_path: Path, at: int, pass_: int, evaluations: str) -> None:
    recipe = restored(tmp_path, at)
    run = recipe.parent / "run"
    step = Series(str(run / "checkpoints")).latest()
    assert step is not None
    assert (step - 1) // 16 + 1 == pass_  # 16 steps in a pass
    said: list[str] = []
    launch.train(load(recipe), str(run), resume=True, notice=said.append)
    assert said[:2] == [
        "starting hybrid: one process",
        f"resuming after step {step}, in epoch {pass_}: {100 * step:,} samples, "
        f"{evaluations}; snapshot: {run}/checkpoints/step-{step:08d}",
    ]


def test_without_output_the_newest_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = load(make_recipe(tmp_path, STEPPED, frame(1250)), ["training.epochs=1"])
    for _ in range(2):
        with pytest.raises(KilledError):
            launch.train(recipe, observers=[KillAt(8)])
    assert str(launch.train(recipe, resume=True).folder) == "runs/clicks-2"


def test_more_epochs_may_be_asked_for(tmp_path: Path) -> None:
    recipe = restored(tmp_path)
    run = str(recipe.parent / "run")
    more = load(recipe, ["training.epochs=3", "training.patience="])
    with pytest.raises(ConfigError, match=r"differs from the run's recipe in training\.patience"):
        launch.train(more, run, resume=True)
    outcome = launch.train(load(recipe, ["training.epochs=3"]), run, resume=True)
    assert outcome.result.steps == 48
    assert outcome.folder.recipe().sections.training.epochs == 3


def test_another_recipe_is_refused(tmp_path: Path) -> None:
    recipe = restored(tmp_path)
    with pytest.raises(ConfigError, match=r"differs from the run's recipe in data\.batch_size"):
        launch.train(load(recipe, ["data.batch_size=50"]), str(recipe.parent / "run"), resume=True)


@pytest.mark.parametrize("state", ["no run", "no snapshot", "complete"])
def test_nothing_to_resume(state: str, tmp_path: Path) -> None:
    recipe = restored(tmp_path, None) if state == "complete" else make_recipe(tmp_path, RECIPE)
    run = str(recipe.parent / "run")
    if state == "no snapshot":
        with pytest.raises(KilledError):
            launch.train(load(recipe), run, observers=[KillAt(5)])
    with pytest.raises(ConfigError, match="there is nothing to resume"):
        launch.train(load(recipe), run, resume=True)


def test_what_is_said_about_a_complete_run_can_be_done(tmp_path: Path) -> None:
    """The command that both errors name trains it on, to the metrics of a run with as many passes."""
    recipe = restored(tmp_path, None)
    run = str(recipe.parent / "run")
    advice = f"satrap train --output {run} --resume --set training.epochs=N"
    for resume, what in ((True, "there is nothing to resume"), (False, "already holds a run")):
        with pytest.raises(ConfigError, match=what) as caught:
            launch.train(load(recipe), run, resume=resume)
        assert advice in caught.value.fix
    more = launch.train(load(Path(run, "recipe.yaml"), ["training.epochs=3"]), run, resume=True)
    whole = launch.train(load(recipe, ["training.epochs=3"]), str(tmp_path / "whole"))
    assert more.result.steps == whole.result.steps == 48
    assert more.test == whole.test


def test_what_is_said_about_a_run_that_cannot_be_trained_on(tmp_path: Path) -> None:
    """It keeps no snapshot; both errors say so, and none sends the user to the other."""
    recipe, run = make_recipe(tmp_path, rows=frame(300)), str(tmp_path / "run")
    launch.train(load(recipe, ["training.epochs=1"]), run)
    for resume in (True, False):
        with pytest.raises(ConfigError) as caught:
            launch.train(load(recipe, ["training.epochs=1"]), run, resume=resume)
        assert "--resume" not in caught.value.fix
        assert (
            f"choose another --output DIR or remove {run}; to train longer, raise training.epochs"
            in caught.value.fix
        )


def test_what_is_said_about_a_run_that_was_killed(tmp_path: Path) -> None:
    recipe = restored(tmp_path)
    run = str(recipe.parent / "run")
    with pytest.raises(ConfigError, match="already holds a run") as caught:
        launch.train(load(recipe), run)
    assert f"to continue it: satrap train --output {run} --resume;" in caught.value.fix


@pytest.mark.cluster
def test_a_new_run_does_not_write_among_snapshots_of_another(tmp_path: Path) -> None:
    place = f"checkpoint.url={tmp_path / 'there'}"
    recipe = killed(tmp_path, place)
    with pytest.raises(ConfigError, match="already holds snapshots of another run"):
        launch.train(load(recipe, [place]), str(tmp_path / "other"))
    assert not (tmp_path / "other").exists()


def test_another_machine_needs_recipe_and_snapshots_only(tmp_path: Path) -> None:
    place = f"checkpoint.url={tmp_path / 'there'}"
    recipe = killed(tmp_path, place)
    outcome = launch.train(load(recipe, [place]), str(tmp_path / "elsewhere"), resume=True)
    assert outcome.test == undisturbed(tmp_path).test


def test_defaults(tmp_path: Path) -> None:
    plan = checkpointing(load(make_recipe(tmp_path)), launch.RunFolder(tmp_path / "run"), print)
    assert (plan.url, plan.every_steps, plan.keep) == (str(tmp_path / "run" / "checkpoints"), None, 2)


def test_a_torn_line_of_the_history_is_dropped(tmp_path: Path) -> None:
    run = restored(tmp_path).parent / "run"
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"event": "st')
    launch.train(None, str(run), resume=True)
    events = [json.loads(line)["event"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [e for e in events if e != "step"] == ["validation", "validation", "test"]


def test_a_command_that_is_repeated_starts_goes_on_and_ends(tmp_path: Path) -> None:
    path = restored(tmp_path)
    run, recipe = path.parent / "run", load(path)
    assert begun(recipe, str(tmp_path / "run")) is False
    assert begun(recipe, str(run)) is True
    launch.train(recipe, str(run), resume=True)
    assert begun(recipe, str(run)) is None
    assert begun(load(path, ["training.epochs=3"]), str(run)) is True
    other = load(path, ["training.seed=2"])
    assert begun(other, str(run)) is True  # which is then refused: nothing is removed
    with pytest.raises(ConfigError, match=r"differs from the run's recipe in training\.seed"):
        launch.train(other, str(run), resume=True)


def test_what_died_before_its_first_snapshot_is_begun_anew(tmp_path: Path) -> None:
    recipe = load(make_recipe(tmp_path, STEPPED))
    run = RunFolder.claim(recipe, tmp_path / "run")
    run.history_file.write_text("{}\n")
    (run.path / "notes.txt").write_text("mine")
    (run.checkpoints / "step-00000007").mkdir(parents=True)  # without a manifest
    assert begun(recipe, str(run)) is False
    assert [path.name for path in run.path.iterdir()] == ["notes.txt"]
    RunFolder.claim(recipe, run.path)


def appended(rows: Path) -> str:
    rows.write_text(rows.read_text() + "u1,2,3.5,1\n")
    return f"{rows.stat().st_size:,} bytes now, {rows.stat().st_size - 11:,} before"


def removed(rows: Path) -> str:
    before = rows.stat().st_size
    rows.write_text("".join(rows.read_text().splitlines(keepends=True)[:-3]))
    return f"{rows.stat().st_size:,} bytes now, {before:,} before"


def reordered(rows: Path) -> str:
    header, *lines = rows.read_text().splitlines(keepends=True)
    rows.write_text(header + "".join(reversed(lines)))
    return "its content has changed"


@pytest.mark.parametrize("change", [appended, removed, reordered])
def test_other_rows_amid_a_pass_are_refused(change: Callable[[Path], str], tmp_path: Path) -> None:
    recipe = restored(tmp_path)
    what = change(recipe.parent / "rows.csv")
    with pytest.raises(DataError, match="the training data has changed") as caught:
        launch.train(load(recipe), str(recipe.parent / "run"), resume=True)
    assert caught.value.what.endswith(what)
    assert caught.value.where.endswith("rows.csv")


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_copy_of_the_rows_on_another_machine_is_the_same_data(suffix: str, tmp_path: Path) -> None:
    def made(name: str) -> Recipe:
        text = STEPPED.replace("rows.csv", f"rows.{suffix}")
        text = text.replace("7}", f"7, url: {tmp_path}/{name}-snapshots}}")
        path = make_recipe(tmp_path / name, text, frame(700))
        frame(700).to_parquet(path.parent / "rows.parquet", row_group_size=300)
        os.utime(path.parent / f"rows.{suffix}", (1, 1))
        return load(path)

    whole = launch.train(made("whole"), str(tmp_path / "whole" / "run"))
    with pytest.raises(KilledError):
        launch.train(made("here"), str(tmp_path / "here" / "run"), observers=[KillAt(9)])  # of 12
    (tmp_path / "here-snapshots").rename(tmp_path / "there-snapshots")
    said: list[str] = []
    outcome = launch.train(made("there"), str(tmp_path / "there" / "run"), resume=True, notice=said.append)
    assert outcome.test == whole.test
    assert not any("changed" in line or "another modification time" in line for line in said)


class StopAfterPass(Observer):
    def evaluated(self, metrics: Mapping[str, float], progress: Progress) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


def test_between_two_passes_new_rows_are_taken_with_a_warning(tmp_path: Path) -> None:
    """Statistics of transforms stay those that the model was trained with."""
    recipe, run = load(make_recipe(tmp_path, rows=frame(500))), tmp_path / "run"
    assert launch.train(recipe, str(run), observers=[StopAfterPass()]).result.steps == 4
    schema = Series(str(run / "checkpoints")).manifest(4).settings["schema"]
    frame(750, seed=5).to_csv(tmp_path / "rows.csv", index=False)
    said: list[str] = []
    outcome = launch.train(recipe, str(run), resume=True, notice=said.append)
    [warned] = [line for line in said if "the training data has changed" in line]
    assert f"{tmp_path}/rows.csv" in warned
    assert "the next epoch reads the changed data" in warned
    assert outcome.result.steps == 4 + 6
    assert read_manifest(Storage(str(run / "model"))).settings["schema"] == schema
