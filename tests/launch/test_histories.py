"""Recipes with a history: it decides, wherever rows and readers are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from satrap import launch
from satrap.config import load
from satrap.errors import ConfigError
from satrap.launch.datasets import open_part
from satrap.tools.plan.recipe_cluster import plan_size
from satrap.tools.plan.recipe_dense import plan_network
from tests.launch.histories import RECIPE, frame, make_recipe
from tests.launch.killed import history
from tests.support.interruptions import KillAt, KilledError


def test_a_history_that_decides_the_label_is_learnt(tmp_path: Path) -> None:
    changes = ["dense.optimizer.lr=0.01", "training.epochs=3"]
    path = make_recipe(tmp_path, frame(1200, seed=1, sorts=2))
    found = launch.train(load(path, changes), str(tmp_path / "run"))
    assert found.test["auc"] > 0.8
    plain = "".join(line for line in RECIPE.splitlines(keepends=True) if "sequence: past" not in line)
    plain = plain.replace("  seen_genre:\n", "").replace("hstu, width: 32", "dnn")
    (tmp_path / "plain.yaml").write_text(plain, encoding="utf-8")
    assert launch.train(load(tmp_path / "plain.yaml", changes), str(tmp_path / "plain")).test["auc"] < 0.6
    again = launch.evaluate(launch.RunFolder.open(tmp_path / "run"), [str(tmp_path / "rows.csv")])
    assert again["auc"] > found.test["auc"], "most rows are those of the training"


SAME = ["training.mode=sync", "data.global_batch=true", "data.shuffle=false", "training.epochs=1"]
EXACT = [f"cluster.wire.{way}=float32" for way in ("forward", "backward")]
WAYS = {
    "servers": ["cluster.exchange=servers", "cluster.workers=2", "cluster.shards=2", "cluster.loaders=1"],
    "collective": ["cluster.exchange=collective", "cluster.workers=2"],
    "embedding workers": ["cluster.exchange=servers", "cluster.workers=2", "cluster.embedding_workers=1"],
}
ONE = {
    "lookahead": ["training.lookahead=2"],
    "recomputed": ["dense.checkpoint_activations=true"],
    "micro-batches": ["dense.microbatches=3"],
}


@pytest.mark.cluster
@pytest.mark.parametrize(
    "way", ["servers", pytest.param("collective", marks=pytest.mark.slow), "embedding workers"]
)
def test_it_is_learnt_as_in_one_process_wherever_the_rows_are(tmp_path: Path, way: str) -> None:
    path = make_recipe(tmp_path, frame(1000))
    one = launch.train(load(path, SAME), str(tmp_path / "one"))
    other = launch.train(load(path, [*SAME, *EXACT, *WAYS[way]]), str(tmp_path / "other"))
    assert other.result.steps == one.result.steps
    assert other.test["logloss"] == pytest.approx(one.test["logloss"], rel=1e-3)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, launch.RunOutcome]:
    folder = tmp_path_factory.mktemp("alone")
    path = make_recipe(folder, frame(400))
    return path, launch.train(load(path, SAME), str(folder / "one"))


@pytest.mark.parametrize("way", ONE)
def test_it_is_learnt_the_same_however_a_step_is_computed(
    alone: tuple[Path, launch.RunOutcome], tmp_path: Path, way: str
) -> None:
    path, one = alone
    other = launch.train(load(path, [*SAME, *ONE[way]]), str(tmp_path / "other"))
    assert other.test["logloss"] == pytest.approx(
        one.test["logloss"], rel=0 if way != "micro-batches" else 1e-4
    )


OTHERS = {
    name: f"model={{name: {name}, context: [seen], hidden: [32, 16]}}" for name in ("din", "dien", "bst")
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_models_learn_it_also_in_micro_batches(tmp_path: Path, name: str) -> None:
    path, model = make_recipe(tmp_path, frame(800, seed=1, sorts=2)), OTHERS[name]
    changes = [model, *SAME[:-1], "dense.optimizer.lr=0.01"]
    one = launch.train(load(path, changes), str(tmp_path / "one"))
    assert one.test["auc"] > 0.6
    other = launch.train(load(path, [*changes, "dense.microbatches=3"]), str(tmp_path / "other"))
    assert other.test["logloss"] == pytest.approx(one.test["logloss"], rel=1e-3)
    assert launch.evaluate(launch.RunFolder.open(tmp_path / "one")) == pytest.approx(one.test)


@pytest.mark.cluster
@pytest.mark.parametrize(
    "way",
    [
        ["dense.mesh.tensor=2"],
        pytest.param(["dense.sharded=true"], marks=pytest.mark.slow),
        pytest.param([], marks=pytest.mark.slow),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", OTHERS)
def test_two_workers_train_other_models_as_one(tmp_path: Path, name: str, way: list[str]) -> None:
    path, changes = make_recipe(tmp_path, frame(600)), [*SAME, OTHERS[name]]
    one = launch.train(load(path, changes), str(tmp_path / "one"))
    workers = ["cluster.exchange=collective", "cluster.workers=2", *EXACT, *way]
    two = launch.train(load(path, [*changes, *workers]), str(tmp_path / "two"))
    assert two.test["logloss"] == pytest.approx(one.test["logloss"], rel=1e-3)


BALANCED = ["data.balance=past", "data.buffer_rows=256", "training.epochs=2", "checkpoint.every_steps=3"]


def test_a_run_of_balanced_batches_goes_on_in_the_middle_of_a_buffer_to_the_bit(tmp_path: Path) -> None:
    recipe = load(make_recipe(tmp_path, frame(500)), BALANCED)
    whole = launch.train(recipe, str(tmp_path / "whole"))
    with pytest.raises(KilledError):
        launch.train(recipe, str(tmp_path / "cut"), observers=[KillAt(7)])  # a pass has 6 or 7
    again = launch.train(recipe, str(tmp_path / "cut"), resume=True)
    assert again.test == whole.test
    assert history(tmp_path / "cut") == history(tmp_path / "whole")
    for name in ("model.safetensors", "optimizer.safetensors", "table-000.arrow"):
        files = [next((tmp_path / run / "model").glob(f"data-*/{name}")) for run in ("whole", "cut")]
        assert files[0].read_bytes() == files[1].read_bytes(), name
    plain = launch.train(load(tmp_path / "clicks.yaml", BALANCED[1:]), str(tmp_path / "plain"))
    assert plain.test != whole.test


@pytest.mark.cluster
def test_a_loader_balances_batches_as_workers_do(tmp_path: Path) -> None:
    path = make_recipe(tmp_path, frame(1000))
    way = ["cluster.exchange=servers", "cluster.workers=2", "training.mode=sync", "data.global_batch=true"]
    found = [
        launch.train(load(path, [*BALANCED, *way, f"cluster.loaders={n}"]), str(tmp_path / f"{n}"))
        for n in (0, 1)
    ]
    assert found[0].test == found[1].test


def test_workers_have_batches_of_about_equally_many_events(tmp_path: Path) -> None:
    path, worst = make_recipe(tmp_path), {}
    for balance in ("null", "past"):
        recipe = load(path, [f"data.balance={balance}", "features.seen_rating.transform=null"])
        parts = [open_part(recipe, recipe.schema(), "train", worker=worker, workers=2) for worker in (0, 1)]
        events = [[len(batch.ids["seen"].values) for batch in part.batches()] for part in parts if part]
        steps = np.array([one[:-1] for one in events])  # the last batch is smaller
        worst[balance] = (steps.max(0) / steps.mean(0)).mean()
    assert worst["past"] < 1.015 < 1.025 < worst["null"]


@pytest.mark.cluster
def test_two_workers_may_divide_its_mlp(tmp_path: Path) -> None:
    path = make_recipe(tmp_path, frame(800))
    divided = ["cluster.exchange=collective", "cluster.workers=2", "dense.mesh.tensor=2", *EXACT]
    one = launch.train(load(path, [*SAME, "model.hidden=[32, 16]"]), str(tmp_path / "one"))
    two = launch.train(load(path, [*SAME, "model.hidden=[32, 16]", *divided]), str(tmp_path / "two"))
    assert two.test["logloss"] == pytest.approx(one.test["logloss"], rel=1e-3)


def test_its_memory_is_planned_and_grows_with_the_history(tmp_path: Path) -> None:
    needs = []
    for most in (2, 12):
        path = make_recipe(tmp_path, frame(400))
        changes = [f"features.seen.max_values={most}", "cluster.exchange=collective", "cluster.workers=2"]
        plan = plan_network(load(path, [*changes, "dense.mesh.data=2"]))
        assert plan is not None
        needs.append(plan.given[0].memory["activations"])
    assert needs[1] > 2 * needs[0]


def test_its_products_are_counted_for_histories_as_long_as_they_are(tmp_path: Path) -> None:
    """A token goes through nine matrices of width * width, that of the target through ten."""
    rows = frame(400)
    train = rows[rows.index % 10 < 8]["seen"][:64]
    lengths = [len(text.split("|")) if text else 0 for text in train]
    recipe = load(make_recipe(tmp_path, rows), ["data.shuffle=false"])
    events, width = sum(min(length, 12) for length in lengths) / 64, 32
    blocks = (4 + 1 + 4) * (events + 1) + 1  # projections and out of the first, projections of the second
    rest = 2 * 8 * width * (events + 1) + events * width + (width + 16) * 32 + 32
    linear = 2 * (blocks * width**2 + rest)
    found = plan_size(recipe, 1e9).demand.forward_flop
    assert linear < found < 1.35 * linear, "beside them, attention: 2 * width for each pair of events"


def test_stages_are_refused(tmp_path: Path) -> None:
    path = make_recipe(tmp_path, frame(100))
    changes = ["cluster.exchange=collective", "cluster.workers=2", "dense.mesh.pipeline=2"]
    with pytest.raises(ConfigError, match="HSTU cannot be split into stages"):
        plan_network(load(path, changes))
