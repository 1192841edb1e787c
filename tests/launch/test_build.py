from pathlib import Path

import pytest
import torch

from satrap import launch, optim
from satrap.config import load
from satrap.embedding import tables_of
from satrap.launch.build import WORKER_SEEDS, make_trainer, store_of
from satrap.schema import Table
from satrap.train import WorkerContext
from tests.dense.threads import Board, ThreadGroup, ThreadWorkers
from tests.launch.runs import RECIPE, make_recipe


def test_a_trainer_has_what_the_recipe_says(tmp_path: Path) -> None:
    recipe = load(make_recipe(tmp_path, RECIPE.replace("[log1p, standardize]", "log1p")), ["training.seed=9"])
    trainer = make_trainer(recipe, recipe.schema())
    assert (trainer.mode, trainer.staleness, trainer.store.seed) == ("hybrid", 2, 9)
    assert trainer.embedding_optimizer == recipe.sections.embedding.optimizer
    weights = [p.detach().clone() for p in trainer.model.parameters()]
    trainer.close()
    torch.manual_seed(123)
    again = make_trainer(recipe, recipe.schema())
    assert all(torch.equal(a, b) for a, b in zip(weights, again.model.parameters(), strict=True))
    again.close()


def test_dropout_differs_between_shares_of_the_data_not_between_processes(tmp_path: Path) -> None:
    recipe = load(make_recipe(tmp_path, RECIPE.replace("[log1p, standardize]", "log1p")), ["training.seed=9"])
    workers = ThreadWorkers(Board(4), 2, ThreadGroup(Board(2), 1))  # process 2 of 4 has share 1 of 2
    make_trainer(recipe, recipe.schema(), WorkerContext(workers=workers)).close()
    assert torch.initial_seed() == 9 + WORKER_SEEDS


TABLES = """\
tables:
  user: {optimizer: {name: sgd, lr: 0.5}, initial_scale: 0.25}
  item: {dtype: bfloat16}
"""


def test_tables_of_their_own_reach_the_store(tmp_path: Path) -> None:
    recipe = load(make_recipe(tmp_path, RECIPE + TABLES))
    user, item = tables_of(recipe.schema(), recipe.sections.embedding.optimizer, None, store_of(recipe))
    assert user == Table("user", dim=4, optimizer=optim.SGD(lr=0.5), initial_scale=0.25)
    assert item == Table("item", dim=4, optimizer=optim.Adagrad(lr=0.1), dtype="bfloat16")


@pytest.mark.cluster
def test_tables_of_their_own_are_the_same_with_shard_servers(tmp_path: Path) -> None:
    text = (RECIPE + TABLES).replace("hybrid, staleness: 2", "sync")
    one = launch.train(load(make_recipe(tmp_path, text)), str(tmp_path / "one"))
    wire = "cluster.wire={forward: float32, backward: float32}"
    several = ["cluster.exchange=servers", "cluster.shards=2", wire]
    other = launch.train(load(make_recipe(tmp_path, text), several), str(tmp_path / "other"))
    assert other.test == pytest.approx(one.test, rel=1e-5)
    assert launch.evaluate(other.folder) == pytest.approx(other.test, rel=1e-6)
    plain = launch.train(load(make_recipe(tmp_path, text.replace(TABLES, ""))), str(tmp_path / "plain"))
    assert abs(plain.test["logloss"] - one.test["logloss"]) > 1e-4
