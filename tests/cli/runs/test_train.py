import json
import shlex
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
    make_recipe(folder, RECIPE + "about: {published: {dnn: 0.7, din/ndcg@10: 0.25}}\n")
    return folder, process("train", "clicks.yaml", "--set", "training.epochs=3", folder=folder)


def test_train_leaves_a_run_folder(run: tuple[Path, Answer]) -> None:
    folder, answer = run
    assert answer.code == 0, answer.err
    made = folder / "runs" / "clicks-1"
    assert {path.name for path in made.iterdir()} == {
        "recipe.yaml",
        "metrics.json",
        "metrics.jsonl",
        "sessions.jsonl",
        "tensorboard",
        "model",
    }
    assert answer.out.splitlines()[-4:] == [
        "published  dnn: test AUC 0.7000",
        "published  din: test NDCG@10 0.2500",
        "run folder: runs/clicks-1",
        "next: satrap report runs/clicks-1",
    ]
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
        assert satrap("train", recipe).out.splitlines()[-2] == f"run folder: runs/clicks-{number}"


@pytest.mark.cluster
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_stop_saves_and_prints_the_command_that_goes_on(tmp_path: Path, number: signal.Signals) -> None:
    recipe = make_recipe(tmp_path / "my data", RECIPE.replace("epochs: 2", "epochs: 100000, patience: null"))
    output = tmp_path / "my run's"
    run = subprocess.Popen(
        [SATRAP, "train", recipe, "--set", "training.staleness=3", "--output", output],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 60
        while not (output / "metrics.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        run.send_signal(number)
        out, err = run.communicate(timeout=250)
    finally:
        run.kill()
    assert run.returncode == 0, err
    assert "stopped after step" in out
    stopped = json.loads((output / "metrics.json").read_text())
    assert stopped["stopped"] == "stopped"
    commands = [line for line in out.splitlines() if line.startswith("  satrap ")]
    assert len(commands) == 2
    assert satrap("evaluate", output).out.startswith("AUC")
    steps = f"training.steps={stopped['steps'] + 5}"
    words = shlex.split(commands[0])[1:]
    again = satrap(*words, output / "recipe.yaml", "--set", steps)
    assert again.code == 0, again.err
    finished = json.loads((output / "metrics.json").read_text())
    assert (finished["steps"], finished["stopped"]) == (stopped["steps"] + 5, "steps")
    assert load(output / "recipe.yaml").sections.training.staleness == 3
    assert satrap(*shlex.split(commands[1])[1:]).code == 0


@pytest.mark.cluster
@pytest.mark.parametrize(("more", "code"), [((), 0), (("--set", "embedding.memory=20GiB"), 1)])
def test_a_small_model_trains_where_address_space_is_limited(
    tmp_path: Path, more: tuple[str, ...], code: int
) -> None:
    """4 GiB hold PyTorch, Numba and a small model; a budget above the limit is refused by name."""
    make_recipe(tmp_path)
    done = subprocess.run(
        ["prlimit", f"--as={4 << 30}", SATRAP, "train", "clicks.yaml", *more],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert ("reduce embedding.memory" in done.stderr) == bool(code), done.stderr


def test_a_repeated_command_needs_a_recipe_and_a_folder(tmp_path: Path) -> None:
    path = make_recipe(tmp_path)
    for words in ([path], ["--output", tmp_path / "run"], [path, "--output", tmp_path / "run", "--resume"]):
        answer = satrap("train", *words, "--until-done")
        assert answer.code == 2
        assert "--until-done" in answer.err
    satrap("train", path, "--output", tmp_path / "run", "--until-done", "--set", "x=1").assert_refused("'x'")


def test_from_begins_with_another_run(
    run: tuple[Path, Answer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe, first = make_recipe(tmp_path / "new", rows=frame(300)), run[0] / "runs/clicks-1"
    (tmp_path / "first").symlink_to(first)
    answer = satrap("train", recipe, "--from", "first", "--from-state", "--output", "second")
    assert answer.code == 0, answer.err
    assert "starting from step 48 of " in answer.err
    assert "optimizer state: of rows and network" in answer.err
    kept = load(tmp_path / "second/recipe.yaml").sections.training.warm_start
    assert kept is not None
    assert (kept.url, kept.state) == (str(tmp_path / "first"), True)
    for arguments in (["--from-state"], ["--from", "first", "--resume", "--output", "second"]):
        assert "--from begins a new run" in satrap("train", recipe, *arguments).err
