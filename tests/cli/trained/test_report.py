import json
from pathlib import Path

import pytest

from tests.cli.command import satrap
from tests.launch.runs import make_recipe
from tests.tools.report_page.runs import Page


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    recipe = make_recipe(folder)
    for seed in (1, 2):
        answer = satrap("train", recipe, "--output", folder / str(seed), "--set", f"training.seed={seed}")
        assert answer.code == 0, answer.err
    return folder


def test_a_page_of_one_run_and_its_numbers(runs: Path) -> None:
    answer = satrap("report", runs / "1")
    assert (answer.code, answer.out) == (0, f"report: {runs}/1/report.html\n"), answer.err
    assert answer.err == f"{runs}/1: scoring the validation rows\n"
    page = Page((runs / "1" / "report.html").read_text(encoding="utf-8"))
    [numbers] = json.loads(satrap("report", runs / "1", "--json").out)
    metrics = json.loads((runs / "1" / "metrics.json").read_text())
    assert numbers["metrics"] == metrics
    assert f"{metrics['test']['auc']:.4f}" in page.texts
    assert f"{metrics['validation']['logloss']:.4f}" in page.texts
    assert {"user", "item", "price"} <= set(numbers["scores"]["permuted"])


def test_several_runs_side_by_side(runs: Path) -> None:
    answer = satrap("report", runs / "1", runs / "2", "--quick", "--output", runs / "both.html")
    assert answer.out == f"report: {runs}/both.html\n"
    text = (runs / "both.html").read_text(encoding="utf-8")
    assert "training.seed" in Page(text).texts
    assert list(runs.glob("report.html")) == []


def test_wrong_folders_and_names_are_refused(runs: Path, tmp_path: Path) -> None:
    satrap("report", tmp_path).assert_refused("not a run folder", str(tmp_path))
    satrap("report", runs / "1", "--output", tmp_path / "metrics.json").assert_refused("ends in .html")
    assert satrap("report").code == 2
    assert list(tmp_path.iterdir()) == []
