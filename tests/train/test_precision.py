"""Training in 16 bits: the network computes as under `torch.autocast`, all else is as in float32."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss, roc_auc_score
from torch import Tensor, nn

import satrap
from satrap.batch import Batch
from satrap.dense.compute import precision
from satrap.errors import ConfigError, TrainingError
from satrap.exchange import LocalExchange
from satrap.launch.build import make_trainer as trainer_of
from satrap.train import Predictor, Trainer, TrainingOptions
from tests.config.recipes import loaded
from tests.support import exact_runs as snapshots
from tests.support.trainers import Answer, alone, assert_same, dense, distributed, joined, make_trainer, sgd
from tests.train.one_trainer import FEATURES, TEST, all_rows, make_zoo_trainer, scores
from tests.train.plain import Batches, PlainModel, Tower, lazy, make_batches
from tests.train.ranks import trained

BFLOAT16 = {"precision": "bfloat16"}
pytestmark = pytest.mark.usefixtures("at_once")


class Autocast(nn.Module):
    """A network that calls `torch.autocast` itself."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits: Tensor = self.net(x)
        return logits.float()


def plain(tower: Tower, rows: dict[str, np.ndarray], batches: list[Any]) -> np.ndarray:
    """Train in plain PyTorch; return all weights and rows."""
    model = PlainModel(tower, rows, staleness=0)
    optimizers = {name: lazy(lambda p: torch.optim.Adagrad(p, lr=0.05)) for name in rows}
    model.train(batches, optimizers, sgd(list(tower.parameters())))
    return flat(tower, {name: bag.weight.detach().numpy() for name, bag in model.bags.items()})


def flat(model: nn.Module, rows: dict[str, np.ndarray]) -> np.ndarray:
    weights = [p.detach().numpy() for p in model.parameters()]
    return np.concatenate([part.ravel() for part in (*weights, *rows.values())])


def test_training_is_that_of_pytorch_under_autocast() -> None:
    """Where sums are taken in another order, 16 bits round otherwise now and then."""
    trainer, batches = make_trainer(mode="sync", dense_optimizer=sgd, **BFLOAT16), make_batches(30)
    wide = copy.deepcopy(trainer.model)
    short = copy.deepcopy(trainer.model)
    short.net = Autocast(short.net)
    rows = {name: all_rows(trainer, name) for name in FEATURES}
    before = flat(trainer.model, rows)
    trainer.fit(Batches(batches))
    mine = flat(trainer.model, {name: all_rows(trainer, name) for name in FEATURES})
    trainer.close()
    way = np.linalg.norm(mine - before)
    assert np.linalg.norm(mine - plain(short, rows, batches)) < 1e-5 * way
    assert np.linalg.norm(mine - plain(wide, rows, batches)) > 1e-2 * way


@pytest.mark.parametrize("mode", ["sync", "hybrid", "async"])
def test_rows_get_float32_gradients_and_the_same_run_gives_the_same_bytes(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed: list[np.ndarray] = []
    update = LocalExchange.apply

    def record(self: LocalExchange, lookup: Any, gradients: Any, **about: Any) -> Any:
        pushed.extend(gradients)
        return update(self, lookup, gradients, **about)

    monkeypatch.setattr(LocalExchange, "apply", record)
    data = Batches(make_batches(8))
    first, again, wide = (alone(data, mode=mode, precision=p) for p in ("bfloat16", "bfloat16", "float32"))
    assert_same(first, again)
    assert not np.array_equal(first.dense, wide.dense)
    assert first.result.refused == 0
    assert {(g.dtype, bool(np.isfinite(g).all())) for g in pushed} == {(np.dtype(np.float32), True)}


def test_weights_and_optimizer_stay_float32() -> None:
    trainer = make_trainer(**BFLOAT16)
    trainer.fit(Batches(make_batches(5)))
    state = trainer.dense.part()
    kept = [*state.weights.values(), *(v for e in state.optimizer["state"].values() for v in e.values())]
    assert {tensor.dtype for tensor in kept} == {torch.float32}
    trainer.close()


def spread(kind: str, parts: list[list[Batch]], **arguments: Any) -> Answer:
    """Train with two workers, which end with equal weights; return what the first ended with."""
    data = [Batches(part) for part in parts]
    if kind == "collective":
        return trained(2, data.__getitem__, **arguments)  # compares them
    first, second = distributed(2, 2, data.__getitem__, **arguments)
    assert first.digest == second.digest
    return first


@pytest.mark.cluster
@pytest.mark.parametrize("kind", ["servers", "collective"])
def test_two_workers_learn_nearly_what_one_does(kind: str) -> None:
    """Each rounds its own half of a gradient to 8 bits, which is at most a 256th off, and so is the sum."""
    parts = [make_batches(30, size=16, seed=rank) for rank in range(2)]
    arguments: dict[str, Any] = {"mode": "sync", "dense_optimizer": sgd, **BFLOAT16}
    one = alone(Batches([joined(step) for step in zip(*parts, strict=True)]), **arguments)
    two, again = (spread(kind, parts, **arguments) for _ in range(2))
    start = make_trainer()
    way = np.linalg.norm(one.dense - dense(start))
    start.close()
    assert_same(two, again)
    assert 0 < np.linalg.norm(two.dense - one.dense) < way / 256
    assert two.result.refused == 0


@pytest.mark.parametrize("kind", ["servers", "collective"])
def test_hybrid_workers_keep_equal_weights(kind: str) -> None:
    parts = [make_batches(8, size=16, seed=rank) for rank in range(2)]
    assert spread(kind, parts, mode="hybrid", staleness=2, **BFLOAT16).result.steps == 8


def test_predictions_are_those_of_evaluations_and_of_the_saved_model(tmp_path: Path) -> None:
    trainer = make_zoo_trainer(mode="sync", **BFLOAT16)
    trainer.fit(Batches(make_batches(30)))
    trainer.save(str(tmp_path / "model"))
    predictor = Predictor.load(str(tmp_path / "model"))
    again = Trainer.load(str(tmp_path / "model"))
    mine, labels = scores(trainer), np.concatenate([batch.labels for batch in TEST.items])
    np.testing.assert_array_equal(scores(predictor), mine)
    np.testing.assert_array_equal(scores(again), mine)
    metrics = predictor.evaluate(TEST)
    assert metrics == trainer.evaluate(TEST)
    assert metrics["auc"] == pytest.approx(roc_auc_score(labels, mine), abs=1e-9)
    assert metrics["logloss"] == pytest.approx(log_loss(labels, mine.astype(np.float64)), rel=1e-6)
    wide = Predictor(trainer.model, trainer.schema, trainer.exchange)
    assert 0 < np.abs(scores(wide) - mine).max() < 0.01
    for scorer in (trainer, predictor, again):
        scorer.close()


@pytest.mark.parametrize(("mode", "every", "kill"), [("sync", 7, 9), ("hybrid", 14, 17)])
def test_resumed_equals_undisturbed(mode: str, every: int, kill: int, tmp_path: Path) -> None:
    fit = {"epochs": 2, "validation": snapshots.validation_data()}
    arguments = {"mode": mode, "staleness": 2, **BFLOAT16}
    expected = snapshots.undisturbed(fit, **arguments)
    snapshots.assert_same(expected, snapshots.killed_and_resumed(tmp_path, every, kill, fit, **arguments))
    assert expected["model"] != snapshots.undisturbed(fit, mode=mode, staleness=2)["model"]


@pytest.fixture
def restless(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scale of float16 begins too high and soon rises again."""
    monkeypatch.setattr(precision, "FIRST_SCALE", 2.0**22)
    monkeypatch.setattr(precision, "GROWTH_INTERVAL", 4)


@pytest.mark.usefixtures("restless")
@pytest.mark.parametrize("mode", ["sync", "hybrid"])
def test_in_float16_a_resumed_run_equals_an_undisturbed_one(mode: str, tmp_path: Path) -> None:
    fit = {"epochs": 2, "validation": snapshots.validation_data()}
    arguments: dict[str, Any] = {"mode": mode, "staleness": 2, "precision": "float16", "clip_norm": 1.0}
    expected = snapshots.undisturbed(fit, **arguments)
    snapshots.assert_same(expected, snapshots.killed_and_resumed(tmp_path, 7, 9, fit, **arguments))
    assert expected["counts"][2] == 0


@pytest.mark.usefixtures("restless")
@pytest.mark.parametrize("mode", ["sync", "hybrid", "async"])
def test_in_float16_steps_that_overflow_lower_the_scale_and_do_not_count(mode: str) -> None:
    trainer = make_trainer(mode=mode, precision="float16")
    result = trainer.fit(Batches(make_batches(60)))
    assert (result.steps, result.refused) == (60, 0)
    assert 30 < trainer.run.updates < 60
    assert 1 < trainer.dense.scale.value < 2.0**22
    trainer.close()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_in_float16_rows_and_weights_get_gradients_of_their_true_size(mode: str) -> None:
    arguments: dict[str, Any] = {
        "mode": mode,
        "dense_optimizer": sgd,
        "embedding_optimizer": satrap.optim.SGD(lr=0.5),
        "clip_norm": 0.2,
    }
    data = Batches(make_batches(30))
    first = alone(Batches(data.items[:1]), **arguments)
    wide, short = (alone(data, precision=name, **arguments) for name in ("float32", "float16"))
    assert short.result.refused == 0
    way = np.linalg.norm(wide.dense - first.dense)
    assert np.linalg.norm(short.dense - wide.dense) < 0.01 * way
    for name in FEATURES:
        assert np.linalg.norm(short.rows[name][1] - wide.rows[name][1]) < 0.01 * way


@pytest.mark.cluster
@pytest.mark.usefixtures("restless")
@pytest.mark.parametrize("kind", ["servers", "collective"])
def test_in_float16_two_workers_refuse_the_same_steps(kind: str) -> None:
    parts = [make_batches(30, size=16, seed=rank) for rank in range(2)]
    arguments: dict[str, Any] = {"mode": "sync", "dense_optimizer": sgd, "precision": "float16"}
    one = alone(Batches([joined(step) for step in zip(*parts, strict=True)]), **arguments)
    two = spread(kind, parts, **arguments)
    assert two.result.refused == one.result.refused == 0
    assert 0 < np.linalg.norm(two.dense - one.dense) < 0.1


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_what_float32_would_refuse_ends_the_run(precision: str) -> None:
    batches = make_batches(130)
    for batch in batches[5:]:
        assert batch.numeric is not None
        batch.numeric[:] = np.inf
    trainer = make_trainer(precision=precision)
    with pytest.raises(TrainingError, match="100 steps in a row"):
        trainer.fit(Batches(batches))
    assert trainer.run.steps == 105 + (16 if precision == "float16" else 0)
    trainer.close()


def test_a_recipe_names_it(tmp_path: Path) -> None:
    recipe = loaded(tmp_path, "dense.precision=bfloat16")
    trainer = trainer_of(recipe, recipe.schema())
    assert trainer.training.precision == trainer.predictor.precision == "bfloat16"
    trainer.close()
    with pytest.raises(ConfigError, match="precision 'half' is unknown"):
        TrainingOptions(precision="half")
