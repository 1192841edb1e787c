import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from satrap.config import load
from tests.cli.command import SATRAP, Answer, process, satrap
from tests.launch.runs import RECIPE, frame, lines_of, make_recipe


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Answer]:
    folder = tmp_path_factory.mktemp("train")
    make_recipe(folder)
    return folder, process("train", "clicks.yaml", "--set", "training.epochs=3", folder=folder)


def test_train_leaves_a_run_folder(run: tuple[Path, Answer]) -> None:
    folder, answer = run
    assert answer.code == 0, answer.err
    made = folder / "runs" / "clicks-1"
    assert {path.name for path in made.iterdir()} == {
        "recipe.yaml",
        "metrics.json",
        "metrics.jsonl",
        "tensorboard",
        "model",
    }
    assert answer.out.splitlines()[-1] == "run folder: runs/clicks-1"
    assert load(made / "recipe.yaml").sections.training.epochs == 3


def test_metrics_on_disk_are_those_printed(run: tuple[Path, Answer]) -> None:
    folder, answer = run
    metrics = json.loads((folder / "runs/clicks-1/metrics.json").read_text())
    assert 0.6 < metrics["auc"] == metrics["test"]["auc"] < 1
    assert metrics["samples_per_second"] > 0
    assert (metrics["samples"], metrics["steps"]) == (4800, 48)
    assert f"test       AUC {metrics['auc']:.4f}, logloss {metrics['logloss']:.4f}" in answer.out
    history = lines_of(folder / "runs/clicks-1/metrics.jsonl")
    assert [line["event"] for line in history if line["event"] != "step"] == ["validation"] * 3 + ["test"]
    best = max(line["auc"] for line in history if line["event"] == "validation")
    assert metrics["validation"]["auc"] == pytest.approx(best)


def test_progress_is_plain_without_a_terminal(run: tuple[Path, Answer]) -> None:
    _, answer = run
    lines = answer.err.splitlines()
    assert sum("validation: AUC" in line for line in lines) == 3
    assert any("samples/s | loss" in line and "staleness 2" in line for line in lines)
    assert "\x1b" not in answer.err


def test_the_kept_recipe_runs_again_to_the_same_metrics(run: tuple[Path, Answer], tmp_path: Path) -> None:
    folder, _ = run
    first = json.loads((folder / "runs/clicks-1/metrics.json").read_text())
    answer = satrap("train", folder / "runs/clicks-1/recipe.yaml", "--output", tmp_path / "again")
    assert answer.code == 0
    second = json.loads((tmp_path / "again/metrics.json").read_text())
    assert second["test"] == first["test"]


def test_default_folders_are_numbered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = make_recipe(tmp_path, RECIPE, frame(300))
    for number in (1, 2):
        assert satrap("train", recipe).out.splitlines()[-1] == f"run folder: runs/clicks-{number}"


def test_ctrl_c_keeps_the_model_and_says_so(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path, RECIPE.replace("epochs: 2", "epochs: 100000, patience: null"))
    run = subprocess.Popen(
        [SATRAP, "train", recipe, "--output", tmp_path / "run"],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        history = tmp_path / "run" / "metrics.jsonl"
        deadline = time.monotonic() + 60
        while not history.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(run.pid, signal.SIGINT)
        out, err = run.communicate(timeout=60)
    finally:
        run.kill()
    answer = Answer(run.returncode, out.decode(), err.decode())
    answer.assert_refused(
        "interrupted after step", "kept: the model", f"next: satrap evaluate {tmp_path}/run", code=1
    )
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["stopped"] == "interrupted"
    assert 0.5 < json.loads(satrap("evaluate", tmp_path / "run", "--json").out)["auc"] < 1
