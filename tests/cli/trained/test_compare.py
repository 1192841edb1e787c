import json
from pathlib import Path

import pytest

from satrap.cli.trained.compare import seeds_line, spread
from tests.cli.command import satrap
from tests.launch.runs import frame, make_recipe


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compare")
    recipe = make_recipe(folder, rows=frame(600))
    for name, hidden in (("a", 4), ("b", 8)):
        answer = satrap(
            *("train", recipe, "--seeds", 2, "--output", folder / name),
            *("--set", f"model.hidden=[{hidden}]"),
        )
        assert answer.code == 0, answer.err
        lines = answer.out.splitlines()
        assert [line for line in lines if line.endswith(("seed-1", "seed-2"))] == [
            f"{folder / name}/seed-1",
            f"{folder / name}/seed-2",
        ]
        assert sum(line.startswith("test ") for line in lines) == 2
        assert lines[-3].startswith("2 seeds    AUC 0.")
        assert lines[-3].endswith("(mean ± standard deviation)")
        assert lines[-1] == f"next: satrap compare {folder / name} OTHER"
    return folder


def test_a_table_and_the_tests(runs: Path) -> None:
    answer = satrap("compare", runs / "a", runs / "b")
    assert answer.code == 0, answer.err
    head, first, second, empty, title, *tests = answer.out.splitlines()
    assert head.split()[:3] == ["test", "seeds", "AUC"]
    assert first.startswith(f"{runs / 'a'}  2")
    assert "±" in second
    assert (empty, title) == ("", f"{runs / 'b'} minus {runs / 'a'}")
    assert any(line.startswith("AUC") and line.endswith("DeLong, 60 rows") for line in tests)
    assert any(line.startswith("logloss") and line.endswith("paired t, 2 seeds") for line in tests)
    assert all("95 % interval" in line and " p " in line for line in tests)


def test_numbers_as_json_and_single_runs(runs: Path) -> None:
    answer = satrap("compare", runs / "a/seed-1", runs / "b/seed-1", "--quick", "--json")
    numbers = json.loads(answer.out)
    metrics = json.loads((runs / "b/seed-1/metrics.json").read_text())["test"]
    assert numbers["metrics"][f"{runs}/b/seed-1"]["auc"] == [metrics["auc"], None]
    shown = satrap("compare", runs / "a/seed-1", runs / "b/seed-1", "--quick")
    assert "no test: train both with several seeds" in shown.out
    assert "±" not in shown.out


def test_what_cannot_be_compared_is_refused(runs: Path, tmp_path: Path) -> None:
    satrap("compare", runs / "a").assert_refused("at least two runs")
    satrap("compare", runs / "a", runs / "b", "--seeds", 3).assert_refused("has 2 seeds, not 3")
    satrap("compare", runs / "a", tmp_path).assert_refused("not a run folder")
    recipe = make_recipe(tmp_path, rows=frame(100))
    satrap("train", recipe, "--seeds", 2, "--output", runs / "a").assert_refused("already holds a run")
    assert "give only one of" in satrap("train", recipe, "--seeds", 2, "--resume").err
    assert "needs a RECIPE" in satrap("train", "--seeds", 2).err


def test_a_spread_is_that_of_several_runs() -> None:
    assert spread((0.5, 0.01)) == "0.5000 ± 0.0100"
    assert spread((0.5, float("nan"))) == "0.5000"
    assert spread(None) == "-"
    assert seeds_line([{"auc": 0.5}, {"auc": 0.7}]) == (
        "2 seeds    AUC 0.6000 ± 0.1414 (mean ± standard deviation)"
    )
