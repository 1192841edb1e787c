import json
from pathlib import Path

import pytest

from satrap.cli.setup import quickstart as module
from satrap.config.keys.sections import AboutKeys
from tests.cli.command import process, satrap
from tests.launch.runs import RECIPE, make_recipe

ABOUT = """\
about:
  title: Clicks
  licence: CC BY 4.0
  attribution: somebody
  source: https://example.org/clicks
  floor: {auc: 0.5123}
"""


def test_quickstart_prints_credit_and_compares_with_the_floor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_recipe(tmp_path / "quickstart", RECIPE + ABOUT).rename(tmp_path / "quickstart" / "goodbooks.yaml")
    monkeypatch.setattr(module, "files", lambda package: tmp_path)
    monkeypatch.chdir(tmp_path)
    answer = satrap("quickstart")
    assert answer.code == 0, answer.err
    auc = json.loads((tmp_path / "runs/quickstart-1/metrics.json").read_text())["auc"]
    lines = answer.out.splitlines()
    assert lines[:3] == ["Clicks", "data: CC BY 4.0, somebody", "https://example.org/clicks"]
    table = [line.split("  ") for line in lines[lines.index("") + 1 :][:3]]
    assert [(row[0], row[-1].strip()) for row in table] == [
        ("on the test rows", "AUC"),
        ("logistic regression", "0.5123"),
        ("dnn", f"{auc:.4f}"),
    ]
    assert "run folder: runs/quickstart-1" in lines
    commands = [line.split() for line in lines[lines.index("next:") + 1 :]]
    assert [command[:2] for command in commands] == [
        ["satrap", "report"],
        ["satrap", "evaluate"],
        ["satrap", "train"],
        ["tensorboard", "--logdir"],
    ]
    for command in commands[:3]:  # what is proposed works
        assert satrap(*command[1:]).code == 0


def test_credit_leaves_out_what_is_not_known() -> None:
    assert module.credit(AboutKeys(title="T", licence="L")) == "T\ndata: L"
    assert module.credit(AboutKeys()) == ""


@pytest.mark.cluster
def test_the_bundled_recipe_beats_the_floor(tmp_path: Path) -> None:
    answer = process("quickstart", "--output", "run", folder=tmp_path)
    assert answer.code == 0, answer.err
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["auc"] >= 0.772
