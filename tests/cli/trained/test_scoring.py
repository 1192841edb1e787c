import json
from pathlib import Path

import pandas as pd
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from satrap.cli.trained.scoring import _warn_of_unseen
from tests.cli.command import process, satrap
from tests.launch.runs import frame, make_recipe


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scoring")
    answer = satrap("train", make_recipe(folder), "--output", folder / "run")
    assert answer.code == 0, answer.err
    return folder / "run"


def test_evaluate_from_the_folder_alone(run: Path) -> None:
    kept = json.loads((run / "metrics.json").read_text())["test"]
    answer = process("evaluate", run, "--json")
    assert answer.code == 0, answer.err
    shown = json.loads(answer.out)
    assert {key: shown[key] for key in kept} == pytest.approx(kept)
    assert shown.keys() - kept.keys() == {"unseen/user", "unseen/item"}
    shown = satrap("evaluate", run)
    assert shown.out.splitlines()[0].split() == ["AUC", f"{kept['auc']:.4f}"]
    assert shown.err == f"scoring the test rows of the recipe: {run.parent / 'rows.csv'}\n"
    assert "error_bound" not in shown.out  # 0 with few rows, which interests nobody


def test_evaluate_says_which_rows_it_scores_and_that_a_model_was_trained_on_them(
    run: Path, tmp_path: Path
) -> None:
    frame(300, seed=8).to_csv(tmp_path / "a.csv", index=False)
    frame(300, seed=9).to_csv(tmp_path / "b.csv", index=False)
    answer = satrap("evaluate", run, "--input", tmp_path / "*.csv", "--input", tmp_path / "a.csv")
    assert answer.err == f"scoring all rows of {tmp_path}/*.csv, {tmp_path}/a.csv\n"
    same = tmp_path / ".." / tmp_path.name / "linked.csv"
    same.symlink_to(run.parent / "rows.csv")
    answer = satrap("evaluate", run, "--input", tmp_path / "a.csv", "--input", same)
    assert answer.code == 0
    assert f"warning: the model was trained on rows of {run.parent}/rows.csv\n" in answer.err
    assert "satrap evaluate without --input" in answer.err


def test_predict_parquet_agrees_with_evaluate_on_new_rows(run: Path, tmp_path: Path) -> None:
    rows = frame(777, seed=5)
    rows.to_parquet(tmp_path / "new.parquet")
    rows.to_csv(tmp_path / "new.csv", index=False)
    metrics = json.loads(satrap("evaluate", run, "--input", tmp_path / "new.csv", "--json").out)
    answer = satrap("predict", run, "--input", tmp_path / "new.csv", "--output", tmp_path / "out.parquet")
    assert answer.out == f"777 rows written to {tmp_path}/out.parquet\n", answer.err
    scored = pd.read_parquet(tmp_path / "out.parquet")
    assert list(scored) == [*rows.columns, "clicked_probability"]
    assert scored["user"].tolist() == rows["user"].tolist()
    assert roc_auc_score(rows["clicked"], scored["clicked_probability"]) == pytest.approx(metrics["auc"])
    assert log_loss(rows["clicked"], scored["clicked_probability"]) == pytest.approx(
        metrics["logloss"], abs=1e-5
    )


def test_ids_that_were_never_trained_are_counted_and_warned_of(run: Path, tmp_path: Path) -> None:
    """The oracle counts the distinct values of each batch of 100 rows that the training rows do not hold."""
    seen = set(frame()["user"])  # each in hundreds of rows
    rows = frame(250, seed=6)
    rows["user"] = rows["user"].astype(str).where(rows.index % 3 > 0, "new " + rows["user"].astype(str))
    rows.to_csv(tmp_path / "new.csv", index=False)
    answer = satrap("evaluate", run, "--input", tmp_path / "new.csv", "--json")
    batches = [set(rows["user"][at : at + 100]) for at in range(0, 250, 100)]
    unseen = sum(len(batch - seen) for batch in batches) / sum(map(len, batches))
    assert 0.1 < unseen < 0.5
    assert json.loads(answer.out)["unseen/user"] == pytest.approx(unseen)
    assert "trained" not in answer.err
    rows["user"] = "new " + rows["user"].astype(str)
    rows.to_csv(tmp_path / "other.csv", index=False)
    for command in (["evaluate"], ["predict", "--output", tmp_path / "out.csv"]):
        answer = satrap(command[0], run, "--input", tmp_path / "other.csv", *command[1:])
        assert answer.code == 0
        assert "most ids are not in the model: user 100%\n" in answer.err


@pytest.mark.parametrize("name", ["out.csv", "out.csv.gz"])
def test_predict_csv_without_labels(run: Path, tmp_path: Path, name: str) -> None:
    rows = frame(250, seed=6).drop(columns="clicked")
    rows.to_csv(tmp_path / "new.csv", index=False)
    answer = satrap("predict", run, "--input", tmp_path / "new.csv", "--output", tmp_path / name)
    assert answer.code == 0, answer.err
    scored = pd.read_csv(tmp_path / name)
    assert list(scored) == [*rows.columns, "clicked_probability"]
    assert scored["clicked_probability"].between(0, 1).all()
    assert len(scored) == 250
    satrap("evaluate", run, "--input", tmp_path / "new.csv").assert_refused("clicked")


def test_predict_refuses_to_overwrite_and_leaves_nothing_behind(run: Path, tmp_path: Path) -> None:
    frame(10).to_csv(tmp_path / "new.csv", index=False)
    given = ["predict", run, "--input", tmp_path / "new.csv", "--output"]
    (tmp_path / "out.csv").write_text("mine")
    satrap(*given, tmp_path / "out.csv").assert_refused("already exists", "out.csv")
    assert (tmp_path / "out.csv").read_text() == "mine"
    satrap(*given, tmp_path / "out.xlsx").assert_refused("the format of the output")
    satrap(*given, tmp_path / "none" / "out.csv").assert_refused("does not exist")
    frame(10).assign(clicked_probability=1.0).to_csv(tmp_path / "new.csv", index=False)
    satrap(*given, tmp_path / "x.csv").assert_refused("already has a column 'clicked_probability'")
    frame(10).drop(columns="item").to_csv(tmp_path / "new.csv", index=False)
    satrap(*given, tmp_path / "x.csv").assert_refused("'item'")
    frame(0).to_csv(tmp_path / "new.csv", index=False)
    satrap(*given, tmp_path / "x.csv").assert_refused("no rows")
    assert {path.name for path in tmp_path.iterdir()} == {"new.csv", "out.csv"}


def test_from_more_than_half_on_unseen_ids_are_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    _warn_of_unseen({"user": 0.5, "item": 0.0})
    assert capsys.readouterr().err == ""
    _warn_of_unseen({"user": 0.51, "item": 0.5, "city": 0.75})
    first = "warning: most ids are not in the model: user 51%, city 75%"
    assert capsys.readouterr().err.splitlines()[0] == first
