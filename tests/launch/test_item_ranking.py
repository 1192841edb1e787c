"""A run that ranks all items: the ranks of its exported vectors, whatever the processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from satrap import launch
from satrap.config import load
from satrap.errors import ConfigError
from satrap.export import export_items
from tests.launch.runs import make_recipe
from tests.support.clusters import COLLECTIVE, SERVERS

RECIPE = """\
data: {train: rows.csv, split: {modulo: 10, validation: [8], test: [9]}, batch_size: 100}
labels: [clicked]
features:
  user: {dim: 4}
  history: {dim: 4, multi: true, separator: "|", table: item}
  item: {dim: 4}
  price: {numeric: true, transform: standardize}
model: {name: two_tower, item: [item, price], hidden: [8], width: 6}
embedding: {optimizer: {name: adagrad, lr: 0.3}}
training: {mode: sync, epochs: 2, monitor: recall@5, ranking: {at: [5], among: items, exclude: history}}
"""


def clicks(count: int = 1500) -> pd.DataFrame:
    random = np.random.default_rng(0)
    users, items = random.integers(0, 40, count), random.integers(0, 60, count)
    taste = np.random.default_rng(1).normal(size=(40, 60))
    return pd.DataFrame(
        {
            "user": users,
            "history": ["|".join(map(str, random.integers(0, 60, random.integers(0, 6)))) for _ in users],
            "item": items,
            "price": items * 0.5,
            "clicked": (taste[users, items] + random.normal(size=count) > 0).astype(int),
        }
    )


def recall(folder: Path, run: Any, exclude: str = "history", k: int = 5) -> float:
    """The share of clicked test rows whose item is among the first k by exported vectors."""
    table = clicks()
    trained = table[(np.arange(len(table)) % 10 < 8) & (table.clicked == 1)].groupby("user")["item"].agg(set)
    test = table[(np.arange(len(table)) % 10 == 9) & (table.clicked == 1)]
    known = table[(np.arange(len(table)) % 10 < 8) | (np.arange(len(table)) % 10 == 9)]
    for name, rows in (("item", known.drop_duplicates("item")), ("user", test.assign(row=range(len(test))))):
        rows.to_csv(folder / f"{name}.csv", index=False)
        column = {"item": "item", "user": "row"}[name]
        source = [str(folder / f"{name}.csv")]
        export_items(run, folder / f"{name}.parquet", source, column=column, tower=name)
    items, users = (pq.read_table(folder / f"{name}.parquet") for name in ("item", "user"))
    names = items["item"].to_numpy().astype(int)
    vectors = np.array(items["vector"].to_pylist(), np.float32)
    scores = np.array(users["vector"].to_pylist(), np.float32) @ vectors.T
    hits = 0
    for number, (user, item, history) in enumerate(test[["user", "item", "history"]].to_numpy()):
        seen = {int(one) for one in history.split("|") if one} if exclude == "history" else trained[user]
        seen = seen - {item}
        own = scores[number, names == item][0]
        hits += sum(scores[number, i] > own for i, name in enumerate(names) if name not in seen) < k
    return hits / len(test)


@pytest.mark.parametrize(
    ("processes", "exclude"),
    [
        ([], "history"),
        ([], "user"),
        pytest.param([*SERVERS, "cluster.workers=2"], "user", marks=pytest.mark.cluster),
        pytest.param([*COLLECTIVE, "cluster.workers=2"], "history", marks=pytest.mark.cluster),
        pytest.param([*SERVERS, "cluster.workers=2"], "history", marks=pytest.mark.slow),
        pytest.param([*SERVERS, "cluster.workers=2", "cluster.loaders=1"], "user", marks=pytest.mark.slow),
    ],
)
def test_a_run_reports_the_ranks_of_its_vectors(tmp_path: Path, processes: list[str], exclude: str) -> None:
    path = make_recipe(tmp_path, RECIPE.replace("exclude: history", f"exclude: {exclude}"), clicks())
    outcome = launch.train(load(path, processes), str(tmp_path / "run"))
    test = json.loads(outcome.folder.metrics_file.read_text())["test"]
    assert test["recall@5"] == pytest.approx(recall(tmp_path, outcome.folder, exclude))
    assert test["queries"] == clicks().clicked[9::10].sum()
    assert launch.evaluate(outcome.folder) == pytest.approx(test, rel=1e-5)


@pytest.mark.parametrize("exclude", ["history", "user"])
def test_the_items_of_a_file_are_ranked(tmp_path: Path, exclude: str) -> None:
    table = clicks()
    recipe = RECIPE.replace("data: {", "data: {items: items.csv, ")
    path = make_recipe(tmp_path, recipe.replace("exclude: history", f"exclude: {exclude}"), table)
    listed = table.drop_duplicates("item")[["item", "price"]]
    listed.head(20).to_csv(tmp_path / "items.csv", index=False)
    outcome = launch.train(load(path), str(tmp_path / "run"))
    twenty = outcome.test["recall@5"]
    assert launch.evaluate(outcome.folder)["recall@5"] == pytest.approx(twenty)
    listed.to_csv(tmp_path / "items.csv", index=False)
    every = launch.evaluate(outcome.folder)["recall@5"]
    assert 0 < twenty < 20 / 60 + 0.1
    assert every != twenty


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("at: [5]", "at: [5, 500]", "first 500 items, but the number of items is 60"),
        ("name: two_tower, item: [item, price], hidden: [8], width: 6", "name: dnn", "DNN has no towers"),
        ("exclude: history", "exclude: price", "'price', which is not a categorical feature"),
        (", among: items, exclude: history", "", "ranking needs a group column"),
        (", table: item", "", "feature 'history', which does not have the ids of items"),
        (
            "ranking: {at: [5], among: items, exclude: history}",
            "ranking: {at: [5]}}\ngroup: user\ncluster: {exchange: local",
            "",
        ),
    ],
)
def test_bad_input_is_one_error_before_the_training(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = RECIPE.replace(old, new)
    path = make_recipe(tmp_path, text, clicks())
    if not message:
        with pytest.raises(ConfigError, match=r"data\.items has no effect without"):
            load(path, ["data.items=items.csv"])
        return
    with pytest.raises(Exception, match=message) as caught:
        launch.train(load(path), str(tmp_path / "run"))
    assert str(caught.value).count("\n") <= 3
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
