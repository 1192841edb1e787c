"""Every recipe that is shipped can be loaded, its model built, and what it says about its data is true."""

from __future__ import annotations

import gzip
import hashlib
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from pyarrow import parquet

from satrap import models
from satrap.config import load
from satrap.schema import Categorical

ROOT = Path(__file__).resolve().parents[2]
BUNDLED = ROOT / "src" / "satrap" / "quickstart"
RECIPES = sorted([*(ROOT / "examples" / "recipes").glob("*.yaml"), *BUNDLED.glob("*.yaml")])


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_recipe_loads_builds_and_names_its_licence(path: Path) -> None:
    recipe = load(path)
    schema = recipe.schema()
    sections = recipe.sections
    model = models.create(sections.model.name, schema, **(sections.model.model_extra or {}))
    assert sum(p.numel() for p in model.parameters() if isinstance(p, torch.Tensor)) > 0
    about = sections.about
    assert about.title
    assert about.licence
    assert about.source
    assert about.floor or about.published


@pytest.mark.parametrize(
    "path", [BUNDLED / "goodbooks.yaml", ROOT / "examples" / "recipes" / "goodbooks.yaml"]
)
def test_the_bundled_files_are_the_ones_the_figures_are_for(path: Path) -> None:
    recipe = load(path)
    files = {Path(recipe.locate(name)).resolve(): md5 for name, md5 in recipe.sections.about.md5.items()}
    assert {file.name for file in files} == {"ratings.csv.gz", "books.csv.gz"}
    for file, md5 in files.items():
        assert hashlib.md5(file.read_bytes(), usedforsecurity=False).hexdigest() == md5


def test_the_bundled_files_have_the_columns_and_rows_the_attribution_states() -> None:
    with gzip.open(BUNDLED / "ratings.csv.gz", "rt", encoding="utf-8") as file:
        assert file.readline().strip() == "book_id,user_id,rating"
        assert sum(1 for _ in file) == 981_756
    with gzip.open(BUNDLED / "books.csv.gz", "rt", encoding="utf-8") as file:
        assert file.readline().strip() == "book_id,authors,year,language"
        ids = [line.split(",", 1)[0] for line in file]
    assert sorted(map(int, ids)) == list(range(1, 10_001))
    text = (BUNDLED / "ATTRIBUTION.md").read_text(encoding="utf-8")
    for fact in ("CC BY-SA 4.0", "981,756", "10,000", "changes made", "Zygmunt Zając"):
        assert fact in text


def test_marital_status_is_no_input_of_the_recipe_that_predicts_it() -> None:
    schema = load(ROOT / "examples" / "recipes" / "census_income.yaml").schema()
    columns = {feature.column or name for name, feature in schema.features.items()}
    assert columns.isdisjoint({"marital_stat", "income_50k", "instance_weight"})
    assert len(columns) == 39  # 40 features less marital_stat


def test_movielens_is_sorted_by_time_and_split_by_row(tmp_path: Path) -> None:
    rows = [(1, 10, 4.0, 30), (1, 11, 3.5, 10), (2, 10, 5.0, 20), *((3, 11, 1.0, 100 + i) for i in range(8))]
    ratings = "\n".join(",".join(map(str, row)) for row in rows)
    (tmp_path / "ratings.csv").write_text(f"userId,movieId,rating,timestamp\n{ratings}\n", encoding="utf-8")
    movies = 'movieId,title,genres\n11,"B, the film",Drama\n10,A,Comedy|Drama\n'
    (tmp_path / "movies.csv").write_text(movies, encoding="utf-8")
    script = ROOT / "examples" / "movielens_latest_small" / "prepare.py"
    subprocess.run([sys.executable, script, tmp_path, tmp_path / "out"], check=True, capture_output=True)
    parts = {
        name: parquet.read_table(tmp_path / "out" / f"{name}.parquet")
        for name in ("train", "validation", "test")
    }
    assert {name: len(part) for name, part in parts.items()} == {"train": 9, "validation": 1, "test": 1}
    train = parts["train"]
    assert train["timestamp"].to_pylist() == [10, 20, 30, 100, 101, 102, 103, 104, 107]
    assert train["genres"].to_pylist()[:3] == ["Drama", "Comedy|Drama", "Comedy|Drama"]
    assert parts["validation"]["timestamp"].to_pylist() == [105]
    features = load(ROOT / "examples" / "recipes" / "movielens_latest_small.yaml").schema().features
    genres = features["genres"]
    assert isinstance(genres, Categorical)
    assert genres.separator == "|"


def test_ratings_become_histories_of_which_each_event_is_predicted_once(tmp_path: Path) -> None:
    rows = [("a", item, 5, time) for time, item in enumerate("xyzxyzx")]
    rows += [("b", "x", 1, 9), ("b", "y", 1, 3), ("b", "z", 1, 6), ("c", "x", 1, 1), ("c", "rare", 1, 2)]
    path = tmp_path / "ratings.csv"
    path.write_text("\n".join(",".join(map(str, row)) for row in rows) + "\n", encoding="utf-8")
    script = runpy.run_path(str(ROOT / "examples" / "next_item" / "prepare.py"))
    assert script["prepare"](path, tmp_path, 2, 2) == {"train": 2, "validation": 2, "test": 2}
    made = {part: parquet.read_table(tmp_path / f"{part}.parquet").to_pylist() for part in ("train", "test")}
    assert [(row["user"], "".join(row["history"]), row["item"]) for row in made["test"]] == [
        ("a", "yz", "x"),
        ("b", "yz", "x"),
    ]
    histories = [("".join(row["history"]), row["item"]) for row in made["train"]]
    assert histories == [("zx", "y"), ("xy", "z")]  # of xyzxy: y after zx, x after z, z after xy, y after x
    named = "userId,movieId,rating,timestamp\n1,7,3.5,20\n1,8,4.0,10\n1,9,1.0,30\n"
    for text in (named, "1::7::3::20\n1::8::4::10\n1::9::1::30\n"):
        path.write_text(text, encoding="utf-8")
        script["prepare"](path, tmp_path, 200)
        test = parquet.read_table(tmp_path / "test.parquet").to_pylist()
        assert test == [{"user": 1, "item": 9, "history": [8, 7]}]
