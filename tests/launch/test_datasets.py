import hashlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from satrap.config import load
from satrap.errors import ConfigError
from satrap.launch.datasets import changed_files, measured, open_part, open_sources
from satrap.schema import Schema
from tests.launch.runs import RECIPE, frame, make_recipe

NUMBERED = """\
data: {train: rows.csv, split: {modulo: 10, validation: [8], test: [9, 0]}, batch_size: 64, shuffle: false}
labels: [clicked]
features: {row: {numeric: true}}
model: {name: lr}
"""


def rows_of(recipe_path: Path, part: str, *overrides: str) -> list[int]:
    recipe = load(recipe_path, overrides)
    found = open_part(recipe, recipe.schema(), part)
    assert found is not None
    return [int(x) for batch in found.batches(0, None) for x in batch.numeric[:, 0]]


def test_split_parts_are_disjoint_and_complete(tmp_path: Path) -> None:
    table = frame(1003).assign(row=np.arange(1003))
    path = make_recipe(tmp_path, NUMBERED, table)
    assert rows_of(path, "validation") == [i for i in range(1003) if i % 10 == 8]
    assert rows_of(path, "test") == [i for i in range(1003) if i % 10 in (9, 0)]
    assert rows_of(path, "train") == [i for i in range(1003) if i % 10 not in (8, 9, 0)]
    shuffled = rows_of(path, "train", "data.shuffle=true")
    assert shuffled != sorted(shuffled)
    assert sorted(shuffled) == rows_of(path, "train")


def test_a_test_file_of_its_own_beside_a_split(tmp_path: Path) -> None:
    table = frame(100).assign(row=np.arange(100))
    path = make_recipe(tmp_path, NUMBERED.replace("test: [9, 0]}", "test: []}, test: test.csv"), table)
    table.head(7).to_csv(tmp_path / "test.csv", index=False)
    assert rows_of(path, "test") == list(range(7))
    assert len(rows_of(path, "train")) == 90


def test_parts_that_are_not_named_are_none(tmp_path: Path) -> None:
    recipe = load(
        make_recipe(tmp_path, NUMBERED.replace("split: {modulo: 10, validation: [8], test: [9, 0]}, ", ""))
    )
    assert open_part(recipe, recipe.schema(), "test") is None
    assert open_part(recipe, recipe.schema(), "validation") is None


def test_csv_options_and_joins_reach_the_reader(tmp_path: Path) -> None:
    text = """\
data:
  train: raw.txt
  format: csv
  separator: "|"
  columns: [id, weight, clicked]
  comment: "#"
  missing: ["none"]
  strip: true
  shuffle: false
  join: [{source: extra.csv, on: id, columns: [height], prefix: the_}]
labels: [clicked]
features:
  weight: {numeric: true, missing: -7}
  the_height: {numeric: true}
model: {name: lr}
"""
    recipe = load(make_recipe(tmp_path, text))
    (tmp_path / "raw.txt").write_text("# a comment\na | 1.5 | 1\nb | none | 0\n")
    pd.DataFrame({"id": ["b", "a"], "height": [20, 10], "other": [0, 0]}).to_csv(
        tmp_path / "extra.csv", index=False
    )
    found = open_part(recipe, recipe.schema(), "train")
    assert found is not None
    (batch,) = found.batches(0, None)
    assert batch.numeric.tolist() == [[1.5, 10.0], [-7.0, 20.0]]
    assert batch.labels.ravel().tolist() == [1.0, 0.0]


@pytest.mark.parametrize("none", ["null", '""'])
def test_quotes_that_mean_nothing(tmp_path: Path, none: str) -> None:
    path = make_recipe(tmp_path, NUMBERED.replace("rows.csv, split", f"rows.csv, quote: {none}, split"))
    lines = [f"{i},{i % 2},{chr(34) * (i % 4 == 1)}text" for i in range(200)]
    (tmp_path / "rows.csv").write_text("\n".join(["row,clicked,title", *lines]))
    parts = [rows_of(path, part) for part in ("train", "validation", "test")]
    assert sorted(row for part in parts for row in part) == list(range(200))
    assert load(path).resolved()["data"]["quote"] == ""


def test_a_file_given_by_name_is_read_by_its_ending(tmp_path: Path) -> None:
    recipe = load(make_recipe(tmp_path, RECIPE.replace("batch_size: 100", "format: csv")))
    frame(30).to_parquet(tmp_path / "new.parquet")
    schema = Schema([], {"item": recipe.schema().features["item"]})
    found = open_sources(recipe, schema, [str(tmp_path / "new.parquet")])
    assert sum(batch.size for batch in found.batches(0, None)) == 30


def test_standardize_is_measured_on_the_training_rows(tmp_path: Path) -> None:
    recipe = load(make_recipe(tmp_path))
    table = frame()
    kept = np.log1p(table["price"][np.arange(len(table)) % 10 < 8])
    (_, step) = measured(recipe, recipe.schema()).numeric["price"].transform
    assert step["standardize"]["mean"] == pytest.approx(kept.mean(), rel=1e-4)
    assert step["standardize"]["std"] == pytest.approx(kept.std(), rel=1e-3)
    plain = load(make_recipe(tmp_path, RECIPE.replace("[log1p, standardize]", "log1p"))).schema()
    assert measured(recipe, plain) is plain


def test_files_with_another_md5_are_named(tmp_path: Path) -> None:
    path = make_recipe(tmp_path)
    digest = hashlib.md5((tmp_path / "rows.csv").read_bytes()).hexdigest()
    path.write_text(RECIPE + f"about: {{md5: {{rows.csv: {digest.upper()}, not-there.csv: '00'}}}}\n")
    assert changed_files(load(path)) == []
    path.write_text(RECIPE + "about: {md5: {rows.csv: '0123'}}\n")
    assert changed_files(load(path)) == ["rows.csv"]


def test_a_split_by_time(tmp_path: Path) -> None:
    text = NUMBERED.replace(
        "modulo: 10, validation: [8], test: [9, 0]", "column: row, validation: 100, test: {}"
    )
    path = make_recipe(
        tmp_path, text.replace("{}", '"1970-01-01 00:02:30"'), frame(203).assign(row=np.arange(203))
    )
    assert rows_of(path, "train") == list(range(100))
    assert rows_of(path, "validation") == list(range(100, 150))
    assert rows_of(path, "test") == list(range(150, 203))
    assert rows_of(path, "train", "data.split={column: row, test: 150}") == list(range(150))
    with pytest.raises(ConfigError, match=r"'soon' is not a time[\s\S]*data.split"):
        rows_of(path, "test", "data.split.test=soon")
