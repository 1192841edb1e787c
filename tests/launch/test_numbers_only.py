"""Runs whose features are all numbers: a network without tables, in every kind of run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from satrap import launch
from satrap.config import load
from satrap.launch.network import make_model
from tests.launch.runs import make_recipe
from tests.support.clusters import SERVERS
from tests.support.interruptions import Stop
from tests.support.snapshots import saved

COLLECTIVE = ["cluster.exchange=collective", "cluster.workers=2", "cluster.wire.dense=float32"]
RECIPE = """\
data:
  train: rows.csv
  validation: rows.csv
  shuffle: false
  batch_size: 50
labels: [clicked]
features:
  a: {numeric: true}
  b: {numeric: true}
  text: {vector: 3, separator: ";"}
model: {name: dnn, hidden: [8]}
dense: {optimizer: {name: sgd, lr: 0.2}}
training: {mode: sync, epochs: 2}
"""


def numbers(count: int = 400) -> pd.DataFrame:
    random = np.random.default_rng(0)
    columns = random.normal(size=(count, 5)).astype(np.float32)
    clicked = (columns.sum(1) + random.normal(size=count) > 0).astype(int)
    text = [";".join(map(str, row)) for row in columns[:, 2:].tolist()]
    return pd.DataFrame({"a": columns[:, 0], "b": columns[:, 1], "text": text, "clicked": clicked})


def plain_pytorch(
    rows: pd.DataFrame, initial: torch.nn.Module, epochs: int = 2
) -> tuple[list[float], np.ndarray]:
    """The log loss after each pass, and the last probabilities, of the same network in plain PyTorch."""
    vectors = [[float(number) for number in text.split(";")] for text in rows["text"]]
    x = torch.tensor(np.column_stack([rows["a"], rows["b"], vectors]), dtype=torch.float32)
    y = torch.tensor(rows["clicked"].to_numpy(), dtype=torch.float32).unsqueeze(1)
    net = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    with torch.no_grad():
        for mine, given in zip(net.parameters(), initial.parameters(), strict=True):
            mine.copy_(given)
    loss, optimizer = torch.nn.BCEWithLogitsLoss(), torch.optim.SGD(net.parameters(), lr=0.2)
    losses = []
    for _ in range(epochs):
        for first in range(0, len(x), 50):
            optimizer.zero_grad()
            loss(net(x[first : first + 50]), y[first : first + 50]).backward()
            optimizer.step()
        losses.append(loss(net(x), y).item())
    return losses, torch.sigmoid(net(x)).detach().numpy()[:, 0]


@pytest.mark.parametrize("mode", ["sync", "hybrid", "async"])
def test_it_trains_as_plain_pytorch_does(tmp_path: Path, mode: str) -> None:
    rows = numbers(200)
    recipe = load(make_recipe(tmp_path, RECIPE, rows), [f"training.mode={mode}", "training.staleness=0"])
    outcome = launch.train(recipe, str(tmp_path / "run"))
    losses, scores = plain_pytorch(rows, make_model(recipe, recipe.schema()))
    assert [line["logloss"] for line in outcome.result.history] == pytest.approx(losses, rel=1e-5)
    assert launch.evaluate(outcome.folder)["logloss"] == pytest.approx(losses[-1], rel=1e-5)
    launch.predict(outcome.folder, [str(tmp_path / "rows.csv")], tmp_path / "out.csv")
    found = pd.read_csv(tmp_path / "out.csv")["clicked_probability"]
    np.testing.assert_allclose(found, scores, rtol=1e-4)


@pytest.mark.parametrize("mode", ["sync", "hybrid", "async"])
def test_it_goes_on_as_an_undisturbed_run(tmp_path: Path, mode: str) -> None:
    changes = [f"training.mode={mode}", "checkpoint.every_steps=3", "checkpoint.delta_every_steps=1"]
    recipe = load(make_recipe(tmp_path, RECIPE, numbers(200)), changes)
    whole = launch.train(recipe, str(tmp_path / "whole"))
    with pytest.raises(launch.InterruptedRunError):
        launch.train(recipe, str(tmp_path / "run"), observers=[Stop(5)])
    outcome = launch.train(recipe, str(tmp_path / "run"), resume=True)
    assert outcome.result.history == whole.result.history
    assert outcome.result.steps == whole.result.steps == 8
    assert saved(tmp_path / "run") == saved(tmp_path / "whole")


@pytest.mark.cluster
@pytest.mark.parametrize("mode", [pytest.param("sync", marks=pytest.mark.slow), "hybrid"])
def test_workers_of_unequal_shares_train_together(tmp_path: Path, mode: str) -> None:
    """401 rows to score: a worker that has none left does not end while the other has some."""
    path = make_recipe(tmp_path, RECIPE, numbers(401))
    shared = load(path, [*COLLECTIVE, f"training.mode={mode}", "data.global_batch=true"])
    stepped = shared.changed({("checkpoint", "every_steps"): 4, ("cluster", "placement"): "auto"})
    together = launch.train(stepped, str(tmp_path / "together"))
    alone = launch.train(load(path), str(tmp_path / "alone"))
    assert together.result.steps == alone.result.steps
    assert together.result.metrics["samples"] == 401
    found = [line["logloss"] for line in together.result.history]
    assert found == pytest.approx([line["logloss"] for line in alone.result.history], rel=1e-5)
    more = stepped.changed({("training", "epochs"): 3, ("cluster", "workers"): 1})
    assert launch.train(more, str(tmp_path / "together"), resume=True).result.steps > together.result.steps


@pytest.mark.slow
@pytest.mark.cluster
def test_weights_may_be_the_only_rows_of_shards(tmp_path: Path) -> None:
    path = make_recipe(tmp_path, RECIPE, numbers())
    common = ["training.mode=async", "training.staleness=0"]
    there = launch.train(load(path, [*SERVERS, *common, "cluster.shards=2"]), str(tmp_path / "there"))
    here = launch.train(load(path, common), str(tmp_path / "here"))
    assert there.result.history == here.result.history
    assert saved(tmp_path / "there") == saved(tmp_path / "here")
