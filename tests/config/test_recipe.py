from pathlib import Path

import pytest

from satrap import optim
from satrap.config import load, to_yaml
from satrap.schema import Categorical, Label, Numeric, Schema, Vector
from tests.config.recipes import TEXT, edited, loaded, refused, write

DESIGN = """\
data:
  {train: "train*.csv.gz", validation: v.csv, test: t.csv, format: csv, batch_size: 4096, shuffle: true}
labels:    [clicked]
features:
  user:    {dim: 16}
  genres:  {dim: 16, multi: true, separator: "|", pooling: mean}
  price:   {numeric: true, transform: log1p}
model:     {name: dcnv2, hidden: [256, 128]}
embedding: {optimizer: {name: rowwise_adagrad, lr: 0.05}, dtype: float32, memory: 4GiB}
dense:
  optimizer: {name: adam, lr: 0.001}
  mesh: {data: 1, tensor: 1, pipeline: 1}
  sharded: false
  precision: float32
training:  {mode: hybrid, staleness: 4, epochs: 2, seed: 1}
cluster:   {exchange: local, shards: 1, workers: 1, launcher: local}
"""


def test_the_documented_recipe_is_read(tmp_path: Path) -> None:
    recipe = loaded(tmp_path, text=DESIGN)
    assert recipe.name == "recipe"
    assert recipe.sections.data.batch_size == 4096
    assert recipe.sections.model.model_extra == {"hidden": [256, 128]}
    assert recipe.sections.embedding.optimizer == optim.RowWiseAdagrad(lr=0.05)
    assert recipe.schema() == Schema(
        ["clicked"],
        {
            "user": Categorical(dim=16),
            "genres": Categorical(dim=16, multi=True, separator="|", pooling="mean"),
            "price": Numeric(transform="log1p"),
        },
    )


def test_a_rich_schema(tmp_path: Path) -> None:
    text = """\
data: {train: x.csv}
weight: w
group: user
salt: 7
labels:
  - name: liked
    column: rating
    threshold: 4
  - {name: rich, column: income, positive: ">50K", mask: known}
  - {name: five, column: rating, positive: [5, 5.0]}
  - {name: price, kind: regression, loss: huber, delta: 2}
  - {name: color, kind: multiclass, classes: [red, 7]}
  - {name: stars, kind: multiclass, classes: 5}
features:
  pair: {dim: 4, cross: [user, item], buckets: 1000}
  text: {vector: 64, separator: ";"}
  tags: {dim: 4, multi: true, separator: "|", max_values: 3, keep: last, weight_separator: ":"}
  city: {dim: 4, vocabulary: [Bern, 7]}
  rank: {numeric: true, transform: {quantiles: 10}}
  age: {dim: 4, column: years, boundaries: [18, 30, 65], table: ages}
  gain:
    {numeric: true, transform: [log1p, {standardize: {mean: 1.0, std: 2.0}}, {clip: [-3, 3]}], missing: -1}
model: {name: lr}
embedding: {optimizer: {name: adam, lr: 0.1, betas: [0.8, 0.9]}}
"""
    recipe = loaded(tmp_path, text=text)
    schema = recipe.schema()
    assert (schema.weight, schema.group, schema.salt) == ("w", "user", 7)
    assert schema.labels == (
        Label(name="liked", column="rating", threshold=4.0),
        Label(name="rich", column="income", positive=(">50K",), mask="known"),
        Label(name="five", column="rating", positive=("5", "5.0")),
        Label(name="price", kind="regression", loss="huber", delta=2.0),
        Label(name="color", kind="multiclass", classes=("red", "7")),
        Label(name="stars", kind="multiclass", classes=5),
    )
    assert schema.features == {
        "pair": Categorical(dim=4, cross=("user", "item"), buckets=1000),
        "age": Categorical(dim=4, column="years", boundaries=(18, 30, 65), table="ages"),
        "tags": Categorical(
            dim=4, multi=True, separator="|", max_values=3, keep="last", weight_separator=":"
        ),
        "city": Categorical(dim=4, vocabulary=("Bern", 7)),
        "rank": Numeric(transform={"quantiles": 10}),
        "text": Vector(dim=64, separator=";"),
        "gain": Numeric(
            transform=["log1p", {"standardize": {"mean": 1.0, "std": 2.0}}, {"clip": [-3, 3]}], missing=-1
        ),
    }
    assert recipe.sections.embedding.optimizer == optim.Adam(lr=0.1, betas=(0.8, 0.9))


@pytest.mark.parametrize("text", [TEXT, DESIGN])
def test_the_resolved_recipe_loads_to_the_same_from_any_folder(tmp_path: Path, text: str) -> None:
    recipe = loaded(tmp_path, "training.patience=", "training.plateau=0.5", text=text)
    elsewhere = tmp_path / "deep" / "er"
    elsewhere.mkdir(parents=True)
    again = load(write(elsewhere, to_yaml(recipe.resolved())))
    assert again.resolved() == recipe.resolved()
    assert again.schema() == recipe.schema()
    assert again.sections.training == recipe.sections.training
    assert again.sections.training.patience is None
    assert again.locate(again.sections.data.train[0]) == recipe.locate(recipe.sections.data.train[0])


def test_paths_are_relative_to_the_recipe_and_urls_stay(tmp_path: Path) -> None:
    recipe = loaded(tmp_path, text=edited("rows.csv", "[sub/a.csv, /abs/b.csv, 's3://bucket/c.csv']"))
    located = [recipe.locate(path) for path in recipe.sections.data.train]
    assert located == [f"{tmp_path}/sub/a.csv", "/abs/b.csv", "s3://bucket/c.csv"]
    assert recipe.resolved()["data"]["train"] == located


def test_paths_of_overrides_are_relative_to_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    recipe = loaded(tmp_path, "data.train=[sub/a.csv, 's3://bucket/c.csv']")
    assert recipe.resolved()["data"]["train"] == [f"{tmp_path}/here/sub/a.csv", "s3://bucket/c.csv"]
    recipe = loaded(tmp_path, "data.train=t.csv")
    assert recipe.resolved()["data"]["train"] == [f"{tmp_path}/here/t.csv"]


def test_origins(tmp_path: Path) -> None:
    recipe = loaded(tmp_path, "training.mode=sync")
    assert recipe.origin(("training", "mode")) == "--set"
    assert recipe.origin(("training", "staleness")) == f"{tmp_path}/recipe.yaml:12"
    assert recipe.origin(("training", "epochs")) == "default"


@pytest.mark.parametrize(
    ("text", "what", "where"),
    [
        (edited("user:   {dim: 16}", "user:   {dim: 0}"), "feature 'user': dim", ":6, key features.user.dim"),
        (
            edited("user:   {dim: 16}", "user:   {dim: 99999}"),
            "feature 'user': dim",
            ":6, key features.user.dim",
        ),
        (
            edited("user:   {dim: 16}", "user:   {dim: 8, table: genres}"),
            "share table 'genres'",
            ":6, key features.user.table",
        ),
        (
            edited("{numeric: true, transform: log1p}", "{vector: 9999}"),
            "feature 'price': dim",
            ":8, key features.price",
        ),
        (edited("multi: true, ", ""), "feature 'genres': separator", ":7, key features.genres.separator"),
        (
            edited("[clicked]", "[clicked, {name: n, loss: huber}]"),
            "label 'n': loss does not apply to kind binary",
            ":4, key labels.1.loss",
        ),
        (edited("[clicked]", "[clicked, clicked]"), "label names are not unique", ":4, key labels"),
        (edited("log1p", "log2"), "transform 'log2' is unknown", ":8, key features.price.transform"),
        (
            TEXT + "embedding: {optimizer: {name: sgd, lr: 0.0}}\n",
            "SGD: lr must be > 0",
            ":13, key embedding.optimizer.lr",
        ),
    ],
)
def test_impossible_values_name_the_line(tmp_path: Path, text: str, what: str, where: str) -> None:
    error = refused(tmp_path, text=text)
    assert what in error.what
    assert error.where.endswith(where)


@pytest.mark.parametrize(
    ("override", "what"),
    [
        ("data.validation=v.csv", "data.split.validation cannot be combined with data.validation"),
        ("data.split.test=[10]", "names part 10, but the parts are 0 to 9"),
        ("data.split.test=[8]", "data.split names a part twice"),
        ("data.split={modulo: 2, validation: [0], test: [1]}", "data.split leaves no rows for training"),
        ("data.split={column: at}", "data.split has no time"),
        ("data.split={}", "'modulo' is missing"),
        ("data.split={column: at, modulo: 2}", "modulo"),
    ],
)
def test_impossible_splits(tmp_path: Path, override: str, what: str) -> None:
    error = refused(tmp_path, override)
    assert what in error.what
    assert error.where


def test_a_global_batch_is_divided_among_the_workers(tmp_path: Path) -> None:
    servers = ["cluster.exchange=servers", "data.global_batch=true", "data.batch_size=120"]
    for settings, size in (
        (["cluster.workers=3"], 40),
        (["cluster.workers=6", "dense.mesh={tensor: 2}"], 40),
    ):
        assert loaded(tmp_path, *servers, *settings).sections.batch_size == size
    error = refused(tmp_path, *servers, "cluster.workers=7")
    assert "120, which is not divisible by 7 workers" in error.what
    assert "multiple of 7" in error.fix


def test_batches_are_balanced_by_a_sequence_and_with_shuffle(tmp_path: Path) -> None:
    history = "features.genres={dim: 8, multi: true, pooling: none, sequence: past}"
    assert loaded(tmp_path, history, "data.balance=past").sections.data.balance == "past"
    for settings, what in (
        (["data.balance=past"], "no feature is part of a sequence 'past'"),
        ([history, "data.balance=genres"], "no feature is part of a sequence 'genres'"),
        ([history, "data.balance=past", "data.shuffle=false"], "data.balance needs data.shuffle"),
    ):
        error = refused(tmp_path, *settings)
        assert what in error.what
        assert "key data.balance" in error.where or "--set" in error.where


OWN_TABLES = """\
tables:
  user: {optimizer: {name: sgd, lr: 0.5}, initial_scale: 0.1}
  genres: {dtype: bfloat16}
"""


def test_tables_of_their_own(tmp_path: Path) -> None:
    recipe = loaded(tmp_path, text=TEXT + OWN_TABLES)
    assert recipe.sections.tables["user"].optimizer == optim.SGD(lr=0.5)
    assert recipe.sections.tables["genres"].dtype == "bfloat16"
    assert recipe.resolved()["tables"]["genres"] == {"dtype": "bfloat16"}
    (tmp_path / "again.yaml").write_text(to_yaml(recipe.resolved()), encoding="utf-8")
    assert load(tmp_path / "again.yaml").sections.tables == recipe.sections.tables
    for override, what, fix in (
        ("tables.usr.dtype=float16", "tables names the unknown table 'usr'", "did you mean 'user'?"),
        ("tables.user.dtyp=float16", "unknown key 'dtyp' in tables.user", "did you mean 'dtype'?"),
        ("tables.user.optimizer={name: sgd}", "key 'lr' is missing in tables.user.optimizer", "add lr"),
        ("tables.user.optimizer={name: sgdd, lr: 1}", "tables.user.optimizer.name cannot be 'sgdd'", "'sgd'"),
    ):
        error = refused(tmp_path, override, text=TEXT + OWN_TABLES)
        assert (error.what, fix in error.fix) == (what, True)
