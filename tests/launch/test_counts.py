"""Recipes with counts and mean labels of ids, from training to serving."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import satrap
from satrap import launch
from satrap.checkpoint import read_checkpoint, verify
from satrap.checkpoint.rewrite import forget
from satrap.config import load
from satrap.data.encode.encoder import MISSING
from satrap.data.encode.hashing import hash_ids
from satrap.errors import CheckpointError, ConfigError, DataError
from satrap.export import export_network
from satrap.id_counts import IdCounts
from satrap.launch.datasets import measured, open_part
from satrap.schema import Schema
from satrap.serve.http.request import ScoreRequest
from satrap.serve.scoring.model import ServedModel
from satrap.tools.doctor.requirements import data as examined
from satrap.tools.prepare import prepare
from satrap.train import Predictor
from tests.launch.killed import history
from tests.launch.runs import RECIPE, frame, make_recipe
from tests.support.interruptions import KillAt, KilledError

COUNTED = RECIPE.replace(
    "model:",
    """\
  often: {numeric: true, column: user, count: log1p}
  liked: {numeric: true, column: item, mean_label: {folds: 4, smoothing: 5}, transform: standardize}
model:""",
)
STEPPED = COUNTED + "checkpoint: {every_steps: 7}\n"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("counts")
    launch.train(load(make_recipe(folder, COUNTED)), str(folder / "run"))
    return folder


def test_a_model_that_sees_only_counts_learns_the_taste_of_all(run: Path) -> None:
    text = COUNTED.replace("  user:  {dim: 4}\n", "").replace("  item:  {dim: 4}\n", "")
    (run / "numbers.yaml").write_text(text)
    found = launch.train(load(run / "numbers.yaml", ["training.mode=sync"]), str(run / "numbers"))
    (run / "price.yaml").write_text(
        "".join(line for line in text.splitlines(True) if "numeric: true, column" not in line)
    )
    plain = launch.train(load(run / "price.yaml", ["training.mode=sync"]), str(run / "price"))
    assert found.test["auc"] > plain.test["auc"] + 0.05


def test_the_counts_are_files_beside_the_manifest(run: Path) -> None:
    text = next((run / "run/model").glob("manifest.json")).read_text()
    files = sorted(path.name for path in (run / "run/model").glob("data-*/counts-*"))
    assert files == ["counts-000.safetensors", "counts-001.safetensors"]
    features = json.loads(text)["settings"]["schema"]["features"]
    assert [features[name]["counts"] for name in ("often", "liked")] == [None, None]
    saved = Schema.from_dict(read_checkpoint(str(run / "run/model")).settings["schema"])
    recipe = load(run / "clicks.yaml")
    assert saved == measured(recipe, recipe.schema())
    assert measured(recipe, recipe.schema(), saved) == saved
    counts = saved.numeric["often"].counts
    assert counts is not None
    rows = frame()[np.arange(2000) % 10 < 8]
    users = rows["user"].value_counts()
    np.testing.assert_array_equal(counts.counts(hash_ids(list(users.index))), users)
    verify(str(run / "run/model"))


@pytest.mark.parametrize("damage", ["flip", "replace", "remove"])
def test_damaged_counts_are_named(run: Path, damage: str, tmp_path: Path) -> None:
    launch.train(load(run / "clicks.yaml", ["training.epochs=1"]), str(tmp_path / "run"))
    victim = next((tmp_path / "run/model").glob("data-*/counts-001*"))
    data = bytearray(victim.read_bytes())
    if damage == "remove":
        victim.unlink()
    else:
        data[-3] ^= 1
        victim.write_bytes(data if damage == "flip" else data[: len(data) // 2])
    with pytest.raises(CheckpointError, match="counts-001"):
        Predictor.load(str(tmp_path / "run/model"))


def test_a_killed_run_goes_on_to_the_bit(tmp_path: Path) -> None:
    recipe = load(make_recipe(tmp_path, STEPPED))
    whole = launch.train(recipe, str(tmp_path / "whole"))
    with pytest.raises(KilledError):
        launch.train(recipe, str(tmp_path / "cut"), observers=[KillAt(25)])
    lines: list[str] = []
    rows = (tmp_path / "rows.csv").read_text().splitlines(keepends=True)
    again = launch.train(recipe, str(tmp_path / "cut"), resume=True, notice=lines.append)
    assert again.test == whole.test
    assert history(tmp_path / "cut") == history(tmp_path / "whole")
    assert rows
    for name in ("model.safetensors", "table-000.arrow", "counts-000.safetensors", "counts-001.safetensors"):
        files = [next((tmp_path / place / "model").glob(f"data-*/{name}")) for place in ("whole", "cut")]
        assert files[0].read_bytes() == files[1].read_bytes(), name


def test_validation_test_and_predicted_rows_use_all_training_rows(run: Path) -> None:
    recipe = load(run / "clicks.yaml")
    schema = measured(recipe, recipe.schema())
    parts = {part: open_part(recipe, schema, part) for part in ("train", "validation", "test")}
    assert [part for part, rows in parts.items() if rows and rows.settings.training] == ["train"]
    every = satrap.data.read(frame(), schema)
    place = schema.numeric_columns["liked"].start
    test = np.concatenate([batch.numeric for batch in every if batch.numeric is not None])[9::10, place]
    assert parts["test"] is not None
    found = np.concatenate([batch.numeric for batch in parts["test"] if batch.numeric is not None])[:, place]
    np.testing.assert_array_equal(found, test)


def test_prepared_files_have_the_same_counts_and_folds(run: Path, tmp_path: Path) -> None:
    raw = load(run / "clicks.yaml")
    prepared = load(prepare(raw, tmp_path / "out").recipe)
    assert measured(prepared, prepared.schema()) == measured(raw, raw.schema())


def test_the_doctor_reads_the_first_rows_only(run: Path) -> None:
    assert [found.level for found in examined(load(run / "clicks.yaml"))] == ["ok"] * 3


def test_a_server_scores_as_the_predictor_does(run: Path) -> None:
    rows = frame(50, seed=3)
    rows.loc[0, "user"] = "somebody new"
    predictor = Predictor.load(str(run / "run/model"))
    data = satrap.data.read(rows, predictor.schema.without_labels())
    expected = predictor.predict(data)[:, 0]
    with closing(ServedModel("clicks", predictor, MISSING)) as served:
        items = {name: rows[name].tolist() for name in ("user", "item", "price")}
        found = served.score(served.encode([ScoreRequest(50, {}, items)]))
    np.testing.assert_allclose(found[:, 0], expected, rtol=1e-5)


def test_an_exported_network_has_its_counts_beside_it(run: Path, tmp_path: Path) -> None:
    about = export_network(launch.RunFolder.open(run / "run"), tmp_path / "net.pt2")
    assert about["counts"] == {
        "often": "net.counts-000.safetensors",
        "liked": "net.counts-001.safetensors",
    }
    with closing(Predictor.load(str(run / "run/model"))) as predictor:
        for name, file in about["counts"].items():
            counts = IdCounts.from_bytes((tmp_path / file).read_bytes())
            assert counts == predictor.schema.numeric[name].counts


def test_a_forgotten_id_is_in_no_counts(run: Path, tmp_path: Path) -> None:
    launch.train(load(run / "clicks.yaml", ["training.epochs=1"]), str(tmp_path / "run"))
    place, id_ = str(tmp_path / "run/model"), int(hash_ids(["u7"])[0])
    before = Schema.from_dict(read_checkpoint(place).settings["schema"]).numeric["often"].counts
    forget(place, "user", id_)
    after = Schema.from_dict(read_checkpoint(place).settings["schema"]).numeric["often"].counts
    assert before is not None
    assert after is not None
    assert id_ in before.ids
    assert set(before.ids) - set(after.ids) == {np.uint64(id_)}


def test_training_rows_must_be_read_as_such() -> None:
    mean = satrap.Numeric(column="user", mean_label=satrap.schema.MeanLabel())
    schema = Schema(["clicked"], {"item": satrap.Categorical(dim=4), "liked": mean})
    data = satrap.data.read(frame(), schema)
    schema = satrap.data.measure(schema, data)
    data = data.with_options(schema=schema)
    with closing(satrap.Trainer(satrap.models.DNN(schema, hidden=[4]), schema)) as trainer:
        with pytest.raises(ConfigError, match="not read as training rows"):
            trainer.fit(data)
        trainer.fit(data.with_options(training=True), steps=2)
        other = satrap.data.measure(
            schema.replace({"liked": mean}), data.with_options(rows=satrap.data.RowSplit(2, (0,)))
        )
        with pytest.raises(ConfigError, match="counts of feature 'liked' is <counts of"):
            trainer.fit(data.with_options(schema=other, training=True))


@pytest.mark.parametrize(
    ("line", "what", "where"),
    [
        ("{numeric: true, column: user, count: log2}", "count must be 'log1p'", "clicks.yaml:"),
        (
            "{numeric: true, column: user, count: log1p, mean_label: {}}",
            "combined with mean_label",
            "clicks.yaml:",
        ),
        ("{numeric: true, column: user, count: log1p, time: age}", "combined with time", "clicks.yaml:"),
        (
            "{numeric: true, column: user, mean_label: {folds: 1}}",
            "folds must be from 2 to 20",
            "clicks.yaml:",
        ),
        (
            "{numeric: true, column: user, mean_label: {smoothing: 0}}",
            "smoothing must be > 0",
            "clicks.yaml:",
        ),
        ("{numeric: true, column: user, mean_label: {label: click}}", "not 'click'", "clicks.yaml:"),
        ("{numeric: true, column: user, mean_label: true}", "mean_label", "clicks.yaml:"),
        ("{numeric: true, column: user, counts: 3}", "counts", "clicks.yaml:"),
        ("{numeric: true, column: none, count: log1p}", "column 'none' is missing", "rows.csv"),
    ],
)
def test_wrong_keys_are_named(run: Path, line: str, what: str, where: str, tmp_path: Path) -> None:
    path = make_recipe(tmp_path, RECIPE.replace("model:", f"  odd: {line}\nmodel:"))
    with pytest.raises((ConfigError, DataError)) as raised:
        launch.train(load(path), str(tmp_path / "run"))
    assert what in str(raised.value)
    assert where in str(raised.value)
    assert len(str(raised.value).splitlines()) <= 4


EXACT = [f"cluster.wire.{way}=float32" for way in ("forward", "backward")]
SAME = ["training.mode=sync", "data.global_batch=true", "data.shuffle=false", "training.epochs=1"]


@pytest.mark.cluster
def test_workers_and_loaders_see_the_same_numbers(run: Path, tmp_path: Path) -> None:
    way = ["cluster.exchange=servers", "cluster.workers=2", "cluster.shards=2", "cluster.loaders=1"]
    one = launch.train(load(run / "clicks.yaml", SAME), str(tmp_path / "one"))
    other = launch.train(load(run / "clicks.yaml", [*SAME, *EXACT, *way]), str(tmp_path / "other"))
    assert other.result.steps == one.result.steps
    assert other.test["logloss"] == pytest.approx(one.test["logloss"], rel=1e-3)
