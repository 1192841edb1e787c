import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from satrap.config import load
from tests.cli.command import SATRAP, satrap
from tests.launch.runs import RECIPE, frame, make_recipe

SEARCH = ("--set", "tune.usual=false", "--set", "tune.search.dense.optimizer.lr=[0.001, 0.01, 0.03, 0.1]")


def rows(printed: str) -> list[list[str]]:
    """Lines of trials, which begin with a number."""
    return [line.split() for line in printed.splitlines() if line[:5].strip().isdigit()]


def test_a_search_prints_what_mattered_and_writes_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = make_recipe(tmp_path, rows=frame(400))
    answer = satrap("tune", recipe, "--trials", 3, *SEARCH)
    assert answer.code == 0, answer.err
    assert "  dense.optimizer.lr  0.001 (0.01) 0.03 0.1" in answer.err.splitlines()
    assert [row[0] for row in rows(answer.err)] == ["1", "2", "3"]
    lines = answer.out.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["of", "dense.optimizer.lr", "validation"]
    assert lines[-1] == "next: satrap train runs/clicks-tune/best.yaml"
    assert satrap("train", "runs/clicks-tune/best.yaml").code == 0


@pytest.mark.parametrize("given", ["3", "0m", "h", "2 h"])
def test_a_time_has_a_unit(given: str) -> None:
    answer = satrap("tune", "recipe.yaml", "--time", given)
    assert answer.code == 2
    assert "is not a time such as 90s, 30m, 2h or 1d" in answer.err


def test_a_misspelt_key_is_one_error(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path, rows=frame(50))
    answer = satrap(
        "tune", recipe, "--set", "tune.search.dense.optimizer.lrr=[0.1]", "--output", tmp_path / "o"
    )
    answer.assert_refused("unknown key 'lrr'", "--set tune.search.dense.optimizer.lrr", "did you mean 'lr'?")
    assert not (tmp_path / "o").exists()


def test_the_error_without_optuna_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("satrap.tools.tune")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "optuna", None)  # cannot be imported
    answer = satrap("tune", make_recipe(tmp_path, rows=frame(50)))
    answer.assert_refused("satrap tune needs Optuna", "what to do: pip install 'satrap[tune]'")


def trials(folder: Path) -> list[str]:
    return sorted(path.parent.name for path in folder.glob("trials/*/metrics.jsonl"))


@pytest.mark.cluster
def test_after_sigkill_the_same_command_goes_on(tmp_path: Path) -> None:
    text = RECIPE.replace("mode: hybrid, staleness: 2, epochs: 2", "mode: sync, epochs: 30, patience: null")
    recipe, out = make_recipe(tmp_path, text), tmp_path / "my search's"
    command = [str(SATRAP), "tune", str(recipe), "--trials", "4", "--output", str(out), *SEARCH]
    search = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while trials(out) != ["1", "2"]:  # amid the second one
        assert search.poll() is None, search.communicate()
        time.sleep(0.01)
    search.kill()
    search.communicate()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert [row[0] for row in rows(done.stderr)] == ["1", "2", "3", "4"]
    assert "failed, its process was killed:" in done.stderr
    assert "recipe" in rows(done.stderr)[0]
    figures = {
        name: json.loads((out / "trials" / name / "metrics.json").read_text())["validation"]["auc"]
        for name in trials(out)
        if (out / "trials" / name / "metrics.json").exists()
    }
    again = satrap("train", out / "best.yaml", "--output", tmp_path / "best")
    assert again.code == 0, again.err
    best = json.loads((tmp_path / "best" / "metrics.json").read_text())["validation"]["auc"]
    assert best == max(figures.values())


@pytest.mark.cluster
def test_trials_over_shard_servers(tmp_path: Path) -> None:
    """They read no test rows and save no model either."""
    keys = ["cluster.exchange=servers", "cluster.workers=2", "cluster.shards=2"]
    sets = [part for key in keys for part in ("--set", key)]
    recipe, out = make_recipe(tmp_path, rows=frame(400)), tmp_path / "out"
    answer = satrap("tune", recipe, "--trials", 2, "--output", out, *SEARCH, *sets)
    assert answer.code == 0, answer.err
    first = out / "trials" / "1"
    metrics = json.loads((first / "metrics.json").read_text())
    assert metrics["test"] == {}
    assert metrics["validation"]["auc"] > 0.4
    assert not (first / "model").exists()
    assert load(out / "best.yaml").sections.cluster.workers == 2
