import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from satrap import launch
from satrap.config import load
from satrap.errors import CheckpointError, DataError
from satrap.launch.fit import one_class
from satrap.launch.folder.open_run import _beginning
from satrap.train import Trainer
from tests.launch.runs import RECIPE, frame, lines_of, make_recipe
from tests.support.interruptions import Stop


def test_interrupted_run_keeps_the_model(tmp_path: Path) -> None:
    recipe = load(make_recipe(tmp_path, rows=frame(600)), ["training.patience="])
    with pytest.raises(launch.InterruptedRunError, match="interrupted after step 7"):
        launch.train(recipe, str(tmp_path / "run"), observers=[Stop(7)])  # in the second pass
    folder = launch.RunFolder.open(tmp_path / "run")
    assert set(launch.evaluate(folder)) >= {"auc", "logloss"}
    metrics = json.loads(folder.metrics_file.read_text())
    assert metrics["stopped"] == "interrupted"
    assert metrics["auc"] == metrics["validation"]["auc"]
    assert [line["event"] for line in lines_of(folder.history_file)] == ["validation"]


def test_without_test_rows_validation_metrics_are_on_top(tmp_path: Path) -> None:
    changes = ["data.split={modulo: 10, validation: [8]}", "training.epochs=1"]
    recipe = load(make_recipe(tmp_path, rows=frame(600)), changes)
    outcome = launch.train(recipe, str(tmp_path / "run"))
    assert outcome.test == {}
    assert outcome.metrics["auc"] == outcome.result.metrics["auc"]
    assert launch.evaluate(outcome.folder)["auc"] == pytest.approx(outcome.result.metrics["auc"])


def test_a_trial_reads_no_test_rows_and_keeps_no_model(tmp_path: Path) -> None:
    """Its validation metrics are those of a run; the file of test rows need not even be there."""
    recipe = make_recipe(tmp_path, rows=frame(600))
    split = ["data.split={modulo: 10, validation: [8]}", "training.mode=sync"]
    run = launch.train(load(recipe, split), str(tmp_path / "run"))
    trial = launch.train(load(recipe, [*split, "data.test=gone.csv"]), str(tmp_path / "trial"), trial=True)
    assert (trial.test, trial.folder.model.exists()) == ({}, False)
    assert trial.result.metrics == run.result.metrics


def test_two_labels(tmp_path: Path) -> None:
    text = RECIPE.replace("[clicked]", "[clicked, {name: dear, column: price, threshold: 10}]")
    outcome = launch.train(load(make_recipe(tmp_path, text, frame(600))), str(tmp_path / "run"))
    assert {"auc", "clicked/auc", "dear/auc"} <= set(outcome.metrics)
    frame(50).drop(columns="clicked").to_csv(tmp_path / "new.csv", index=False)
    assert launch.predict(outcome.folder, [str(tmp_path / "new.csv")], tmp_path / "out.csv") == 50
    header = (tmp_path / "out.csv").read_text().splitlines()[0]
    assert header.endswith('"clicked_probability","dear_probability"')


def test_vectors_train_evaluate_and_predict_as_numbers_do(tmp_path: Path) -> None:
    """From text and from lists; the same numbers as single features give the same model, to the bit."""
    rows = frame(1000)
    vectors = np.random.default_rng(0).normal(size=(1000, 3)).astype(np.float32)
    rows["clicked"] = (vectors.sum(1) + rows["item"] / 10 > 1).astype(int)
    rows["text"] = [";".join(map(str, vector)) for vector in vectors]
    for i in range(3):
        rows[f"t{i}"] = vectors[:, i]
    kinds = {
        "vector": '  text: {vector: 3, separator: ";"}\n',
        "numbers": "".join(f"  t{i}: {{numeric: true}}\n" for i in range(3)),
    }
    found = {}
    for name, features in kinds.items():
        path = make_recipe(tmp_path / name, RECIPE.replace("features:\n", "features:\n" + features), rows)
        found[name] = launch.train(load(path), str(tmp_path / name / "run"))
    assert found["vector"].test == found["numbers"].test
    assert found["vector"].test["auc"] > 0.8
    rows["text"] = list(vectors)
    rows.to_parquet(tmp_path / "lists.parquet")
    folder = found["vector"].folder
    scores = launch.evaluate(found["numbers"].folder, [str(tmp_path / "numbers" / "rows.csv")])
    assert launch.evaluate(folder, [str(tmp_path / "lists.parquet")]) == scores
    launch.predict(folder, [str(tmp_path / "lists.parquet")], tmp_path / "out.parquet")
    assert pd.read_parquet(tmp_path / "out.parquet")["text"][5].tolist() == vectors[5].tolist()
    with pytest.raises(DataError, match="'text' of type list"):
        launch.predict(folder, [str(tmp_path / "lists.parquet")], tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()


def test_weights_of_values_count_wherever_they_are_written(tmp_path: Path) -> None:
    rows = frame(1000)
    rng = np.random.default_rng(0)
    lengths, weights = rng.integers(1, 4, 1000), rng.choice([0.25, 1.0, 4.0], (1000, 3))
    tags = rng.integers(0, 9, (1000, 3))
    bags = [list(zip(t[:n], w[:n], strict=True)) for t, w, n in zip(tags, weights, lengths, strict=True)]
    rows["clicked"] = [
        int(sum(w * (t < 4) for t, w in bag) > sum(w * (t >= 4) for t, w in bag)) for bag in bags
    ]
    rows["pairs"] = ["|".join(f"t{t}:{w}" for t, w in bag) for bag in bags]
    rows["tags"] = ["|".join(f"t{t}" for t, _ in bag) for bag in bags]
    rows["counts"] = ["|".join(str(w) for _, w in bag) for bag in bags]
    columns = {
        "pairs": 'column: pairs, weight_separator: ":"',
        "beside": "column: tags, weights: counts",
        "without": "column: tags",
    }
    found = {}
    for name, keys in columns.items():
        feature = f'  tags: {{dim: 4, multi: true, separator: "|", {keys}}}\n'
        path = make_recipe(tmp_path / name, RECIPE.replace("features:\n", "features:\n" + feature), rows)
        found[name] = launch.train(load(path, ["training.epochs=3"]), str(tmp_path / name / "run")).test
    assert found["pairs"] == found["beside"]
    assert found["pairs"]["auc"] > found["without"]["auc"] + 0.02


def test_a_label_with_one_value_is_told(tmp_path: Path) -> None:
    said: list[str] = []
    rows = frame(300).assign(clicked=0)
    launch.train(load(make_recipe(tmp_path, rows=rows)), str(tmp_path / "run"), notice=said.append)
    found = [line for line in said if line.startswith("warning: the label is 0 in all ")]
    assert [line.splitlines()[0].split()[-2:] for line in found] == [["validation", "rows"], ["test", "rows"]]
    metrics = {"a/positives": 3, "a/samples": 3, "b/positives": 1, "b/samples": 3, "samples": 3}
    [warning] = one_class("test", metrics)
    assert warning.startswith("warning: a is 1 in all 3 test rows")


@pytest.mark.filterwarnings("default")
def test_lines_inside_quotes_are_told_once_in_a_run(tmp_path: Path) -> None:
    said: list[str] = []
    path = make_recipe(tmp_path, rows=frame(300).assign(note="two\nlines"))
    launch.train(load(path), str(tmp_path / "run"), notice=said.append)
    found = [line for line in said if "spans several lines" in line]
    assert len(found) == 1
    assert found[0].startswith(f"warning: {tmp_path}/rows.csv, row 1: ")


def test_the_beginning_says_what_is_started(tmp_path: Path) -> None:
    said: list[str] = []
    launch.train(load(make_recipe(tmp_path), ["training.steps=1"]), str(tmp_path / "run"), notice=said.append)
    assert "starting hybrid: one process" in said
    several = ["cluster.exchange=servers", "cluster.shards=2", "cluster.workers=3"]
    assert _beginning(load(make_recipe(tmp_path), several)) == "starting hybrid: 2 shards, 3 workers"


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (
            ["cluster.exchange=servers", "cluster.shards=1", "cluster.workers=2", "cluster.loaders=1"],
            "starting hybrid: 1 shard, 1 loader, 2 workers",
        ),
        (
            ["cluster.exchange=servers", 'cluster.addresses=["h:1", "h:2"]', "cluster.embedding_workers=1"],
            "starting hybrid: 1 embedding worker, 1 worker; shards at h:1, h:2",
        ),
        (
            ["cluster.exchange=collective", "cluster.workers=2", "training.mode=sync"],
            "starting sync: 2 workers",
        ),
    ],
)
def test_processes_that_are_started(tmp_path: Path, settings: list[str], line: str) -> None:
    assert _beginning(load(make_recipe(tmp_path), settings)) == line


def test_a_new_run_starts_with_the_weights_rows_and_statistics_of_another(tmp_path: Path) -> None:
    """Scores before the first step are nearly the other run's: one step with tiny rates changes little."""
    old, new = frame(1500), frame(600, seed=5)
    first = launch.train(load(make_recipe(tmp_path / "a", rows=old)), str(tmp_path / "first"))
    changes = [
        "training.warm_start={url: ../first}",  # relative to the recipe, like data
        *("training.steps=1", "embedding.optimizer.lr=1.0e-9", "dense.optimizer.lr=1.0e-9"),
        *("checkpoint.every_steps=1", "training.mode=sync"),
    ]
    recipe, said = load(make_recipe(tmp_path / "b", rows=new), changes), list[str]()
    second = launch.train(recipe, str(tmp_path / "second"), notice=said.append)
    assert any(line.startswith("starting from step 24 of ") for line in said)
    rows = [str(tmp_path / "b" / "rows.csv")]
    alike, other = (launch.evaluate(run.folder, rows) for run in (first, second))
    assert other["logloss"] == pytest.approx(alike["logloss"], rel=1e-4)
    schemas = [Trainer.load(str(run.folder)).schema for run in (first, second)]
    assert schemas[0] == schemas[1], "the mean and std of price are the first run's"
    kept = load(second.folder.recipe_file).sections.training.warm_start
    assert kept is not None
    assert Path(kept.url).resolve() == tmp_path / "first"
    said.clear()
    longer = load(second.folder.recipe_file, ["training.steps=2"])
    launch.train(longer, str(tmp_path / "second"), resume=True, notice=said.append)
    assert not any(line.startswith("starting from step") for line in said), "a resumed run has its own state"


@pytest.mark.cluster
def test_a_run_of_several_processes_starts_with_those_of_another(tmp_path: Path) -> None:
    path = make_recipe(tmp_path, rows=frame(600))
    launch.train(load(path), str(tmp_path / "first"))
    start = f"training.warm_start={{url: {tmp_path / 'first'}, state: true}}"
    cluster = "cluster={exchange: servers, shards: 2, workers: 2}"
    said = list[str]()
    recipe = load(path, [start, cluster, "training.steps=2"])
    launch.train(recipe, str(tmp_path / "second"), notice=said.append)
    assert sum("optimizer state: of rows and network" in line for line in said) == 1


def test_a_place_without_a_run_to_start_from_leaves_no_folder(tmp_path: Path) -> None:
    recipe = load(make_recipe(tmp_path, rows=frame(300)), ["training.warm_start={url: nowhere}"])
    with pytest.raises(CheckpointError, match="no checkpoint"):
        launch.train(recipe, str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
