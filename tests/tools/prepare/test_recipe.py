from pathlib import Path

from satrap.config import load
from satrap.tools.prepare.recipe import write_recipe

TEXT = """\
# my recipe
data:
  train: [raw/a.tsv, raw/b.tsv]
  test: raw/c.tsv
  columns: [y, a, b, w]   # no header
  missing: ["-"]
  quote: ""
  join:
    - {source: side.csv, on: a, columns: [colour]}
  split: {modulo: 10, validation: [9]}   # every tenth
labels: [y]
features:
  a: {dim: 4}   # the user
  number: {column: a, numeric: true}
  colour: {dim: 4}
model: {name: dnn, hidden: [8]}
tables:
  a: {rows: vectors.parquet}
about:
  title: A title
  md5: {raw/a.tsv: abc}
"""


def written(tmp_path: Path, text: str = TEXT, overrides=()) -> Path:
    (tmp_path / "a.yaml").write_text(text)
    (tmp_path / "out").mkdir()
    write_recipe(tmp_path / "out", load(tmp_path / "a.yaml", overrides))
    return tmp_path / "out" / "recipe.yaml"


def test_only_where_rows_come_from_differs_and_comments_stay(tmp_path):
    path = written(tmp_path)
    assert path.read_text().splitlines()[1:] == [
        "# my recipe",
        "data:",
        "  train: train/*.parquet",
        "  test: test/*.parquet",
        "  columns: [y, a, b, w]   # no header",
        '  missing: ["-"]',
        '  quote: ""',
        "  split: {modulo: 10, validation: [9]}   # every tenth",
        "labels: [y]",
        "features:",
        "  a: {dim: 4}   # the user",
        "  number: {column: a, numeric: true}",
        "  colour: {dim: 4}",
        "model: {name: dnn, hidden: [8]}",
        "tables:",
        f"  a: {{rows: {tmp_path}/vectors.parquet}}",
        "about:",
        "  title: A title",
    ]
    assert load(path).locate("train/*.parquet") == str(tmp_path / "out" / "train" / "*.parquet")


def test_overrides_are_written(tmp_path):
    sections = load(written(tmp_path, overrides=["training.epochs=7", "data.batch_size=50"])).sections
    assert (sections.training.epochs, sections.data.batch_size) == (7, 50)


def test_an_alias_costs_the_comments_only(tmp_path):
    text = TEXT.replace("a: {dim: 4}", "a: &one {dim: 4}").replace("colour: {dim: 4}", "colour: *one")
    path = written(tmp_path, text, ["features.a.dim=8"])
    features = load(path).schema().features
    assert (features["a"].dim, features["colour"].dim) == (8, 4)
    assert "# the user" not in path.read_text()
