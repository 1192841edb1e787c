from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import roc_auc_score

from satrap.cli.setup import init as module
from satrap.config import load
from tests.cli.command import satrap
from tests.tools.init.frames import choices, clicks, impressions, shop


def test_from_a_file_to_metrics_with_nothing_edited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    frame = clicks(2500)
    frame.to_csv("clicks.csv", index=False)
    answer = satrap("init", "clicks.csv", "--label", "y")
    assert answer.code == 0, answer.err
    assert "recipe.yaml: 2,500 rows; 3 columns used, 4 left out" in answer.out
    assert "satrap train recipe.yaml" in answer.out
    trained = satrap("train", "recipe.yaml", "--output", "run")
    assert trained.code == 0, trained.err
    test = json.loads(Path("run/metrics.json").read_text())["test"]
    linear = roc_auc_score(frame["y"], frame["price"])
    assert test["auc"] > max(linear, 0.8)  # the steps of the price are not to be had from a line


@pytest.mark.parametrize(
    ("label", "kind"), [("price", "squared"), ("visits", "poisson"), ("color", "classes")]
)
def test_numbers_and_classes_with_nothing_edited(
    label: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    frame = shop(1500).drop(columns=[name for name in ("price", "visits", "color") if name != label])
    pq.write_table(pa.Table.from_pandas(frame), "shop.parquet")
    answer = satrap("init", "shop.parquet", "--label", label)
    assert answer.code == 0, answer.err
    recipe = Path("recipe.yaml").read_text()
    assert kind in recipe
    assert "vector: {vector: 3}" in recipe
    trained = satrap("train", "recipe.yaml", "--output", "run", "--set", "training.epochs=12")
    assert trained.code == 0, trained.err
    test, values = json.loads(Path("run/metrics.json").read_text())["test"], frame[label][9::10]
    if label == "color":
        assert test["accuracy"] > (values == frame[label].mode()[0]).mean() + 0.1
    else:
        assert test["rmse"] < 0.9 * values.std()  # of the mean


def test_from_a_log_of_choices_to_vectors_with_nothing_edited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    choices(4000)[["user_id", "product_id", "kind", "rating", "at"]].to_csv("log.csv", index=False)
    answer = satrap("init", "log.csv", "--user", "user_id", "--item", "product_id")
    assert answer.code == 0, answer.err
    assert "recipe.yaml: 4,000 rows; 3 columns used, 2 left out" in answer.out
    trained = satrap("train", "recipe.yaml", "--output", "run")
    assert trained.code == 0, trained.err
    test = json.loads(Path("run/metrics.json").read_text())["test"]
    assert test["precision@10"] > 2 * 400 / 60 / 120  # of a random order: test rows of a user, by items
    assert satrap("predict", "run", "--input", "log.csv", "--output", "scores.parquet").code == 0
    assert "bought_score" in pq.read_schema("scores.parquet").names
    assert satrap("export", "items", "run", "items.parquet").code == 0
    assert pq.read_table("items.parquet").num_rows == 120


def test_a_label_or_items(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    clicks(20).to_csv("clicks.csv", index=False)
    satrap("init", "clicks.csv").assert_refused("needs --label or --item", "--user COL --item COL")


def test_new_users_in_later_rows_are_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    frame = choices(3000)[["user_id", "product_id"]].sort_values("user_id").assign(day=range(3000))
    frame["day"] = [f"{1990 + day // 336}-{1 + day // 28 % 12:02}-{1 + day % 28:02}" for day in frame["day"]]
    frame.to_csv("log.csv", index=False)
    answer = satrap("init", "log.csv", "--user", "user_id", "--item", "product_id")
    assert "of the last rows have a user_id without earlier rows" in answer.out


def test_what_looks_like_a_copy_of_the_label_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    impressions(4000).rename(columns={"revenue": "net revenue"}).to_csv("shop.csv", index=False)
    answer = satrap("init", "shop.csv", "--label", "clicked")
    warnings = [line for line in answer.out.splitlines() if line.startswith("warning: ")]
    assert [line.split(":")[1] for line in warnings] == [
        f" {name} is left out" for name in ("purchased", "net revenue", "coupon", "status")
    ]
    assert warnings[1].endswith("if it is known before the label, use --keep 'net revenue'")
    answer = satrap("init", "shop.csv", "--label", "clicked", "--keep", "net revenue", "--force")
    assert "revenue is left out" not in answer.out


def test_a_recipe_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    clicks(200).to_csv("clicks.csv", index=False)
    Path("recipe.yaml").write_text("mine")
    satrap("init", "clicks.csv", "--label", "y").assert_refused("recipe.yaml already exists", "--force")
    assert Path("recipe.yaml").read_text() == "mine"
    assert satrap("init", "clicks.csv", "--label", "y", "--force").code == 0
    assert load("recipe.yaml").sections.labels


def test_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    satrap("init", "none.csv", "--label", "y").assert_refused("the file does not exist")
    Path("empty.csv").write_text("")
    satrap("init", "empty.csv", "--label", "y").assert_refused("the file is empty")
    Path("data").write_text("y,x\n0,1\n")
    satrap("init", "data", "--label", "y").assert_refused("cannot be inferred from its name", "--format")
    Path("rows.csv").write_text("1,red,0\n5,blue,1\n3,red,1\n3,blue,0\n")
    satrap("init", "rows.csv", "--label", "y").assert_refused(
        "column 'y' does not exist", "first line seems to contain values", "--names a,b,c"
    )
    answer = satrap("init", "rows.csv", "--names", "id, color,y", "--label", "y", "--output", "named.yaml")
    assert answer.code == 0, answer.err
    assert "columns: [id, color, " in Path("named.yaml").read_text()
    Path("old.csv").write_bytes(b"y,x\r0,1\r1,2\r")
    satrap("init", "old.csv", "--label", "y").assert_refused("header cannot be read", "tr '\\r' '\\n'")
    Path("latin.csv").write_bytes("y,x\n0,ä\n1,b\n".encode("cp1252"))
    satrap("init", "latin.csv", "--label", "y").assert_refused("not UTF-8", "--encoding")
    Path("rows.csv.gz").write_text("y,x\n0,1\n")
    satrap("init", "rows.csv.gz", "--label", "y").assert_refused("not compressed with gzip")
    assert not Path("recipe.yaml").exists()


def test_rows_are_counted_on_a_terminal_once_a_second(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 10.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    with module._Counting() as counting:
        now = 20.0
        counting(1000)
    assert capsys.readouterr().err == ""
    now = 10.0
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with module._Counting() as counting:
        for now, rows in ((11.0, 1000), (11.5, 2000), (12.0, 3000), (12.75, 4000)):  # noqa: B007
            counting(rows)
    assert capsys.readouterr().err == "\r2,000 rows read\r4,000 rows read\r\x1b[K"
