"""The trainer against plain PyTorch: every row and weight, for every optimizer and schedule."""

from __future__ import annotations

import copy
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import satrap
from satrap import compatibility
from satrap.batch import Batch
from satrap.dense import DataParallelBackend, Mesh, RemoteStep, Workers
from satrap.dense.backends.pipelined import PipelinedBackend
from satrap.dense.backends.sharded import ShardedBackend
from satrap.embedding.workers import PooledExchange
from satrap.errors import ConfigError, DataError, TrainingError
from satrap.exchange import LocalExchange
from satrap.exchange.collective import CollectiveExchange
from satrap.exchange.protocol import Pooling
from satrap.store import StoreConfig, TableSettings
from satrap.train import Observer, Predictor, Trainer, TrainingOptions, WorkerContext, lookahead
from satrap.train.schedule import schedule_of
from satrap.train.trainer import _backend, _of_exchange
from tests.support.covering import covering
from tests.train.one_trainer import FEATURES, adam, all_rows, make_trainer
from tests.train.plain import (
    Batches,
    PlainModel,
    Tower,
    lazy,
    make_batches,
    make_schema,
    rowwise_adagrad,
)

OPTIMIZERS: dict[str, tuple[Any, Any]] = {
    "sgd": (satrap.optim.SGD(lr=0.1), lambda: lazy(lambda p: torch.optim.SGD(p, lr=0.1, foreach=True))),
    "adagrad": (
        satrap.optim.Adagrad(lr=0.05),
        lambda: lazy(lambda p: torch.optim.Adagrad(p, lr=0.05, foreach=True)),
    ),
    "rowwise": (satrap.optim.RowWiseAdagrad(lr=0.05), lambda: rowwise_adagrad(0.05)),
    "adam": (satrap.optim.Adam(lr=0.01), lambda: lazy(lambda p: torch.optim.Adam(p, lr=0.01, foreach=True))),
}


@pytest.mark.parametrize(
    ("optimizer", "mode", "staleness", "every"),
    covering(list(OPTIMIZERS), [("sync", 0, 0), ("hybrid", 4, 10), ("hybrid", 3, 0)]),
)
def test_equals_plain_pytorch_after_80_steps(optimizer: str, mode: str, staleness: int, every: int) -> None:
    """Staleness is full at once, or grows by one `every` so many steps."""
    embedding_optimizer, make_oracle = OPTIMIZERS[optimizer]
    arguments = {"mode": mode, "staleness": staleness, "staleness_warmup": every * staleness}
    trainer = make_trainer(embedding_optimizer=embedding_optimizer, **arguments)
    batches = make_batches(80)
    tower = copy.deepcopy(trainer.model)
    rows = {name: all_rows(trainer, name) for name in FEATURES}
    plain = PlainModel(tower, rows, staleness, warmup=every)
    plain.train(batches, {name: make_oracle() for name in FEATURES}, adam(list(tower.parameters())))

    trainer.fit(Batches(batches))

    for name in FEATURES:
        expected = plain.bags[name].weight.detach().numpy()
        np.testing.assert_allclose(all_rows(trainer, name), expected, atol=1e-5, rtol=0)
    for own, other in zip(trainer.model.parameters(), tower.parameters(), strict=True):
        torch.testing.assert_close(own, other, atol=1e-5, rtol=0)
    trainer.close()


def test_hybrid_differs_from_sync() -> None:
    """The schedule matters: otherwise the equality above would prove nothing."""
    rows = []
    for mode in ("sync", "hybrid"):
        trainer = make_trainer(mode=mode)
        trainer.fit(Batches(make_batches(20)))
        rows.append(all_rows(trainer, "user"))
        trainer.close()
    assert np.abs(rows[0] - rows[1]).max() > 1e-4


@pytest.mark.parametrize("mode", ["sync", "hybrid"])
def test_same_seed_same_bytes(mode: str) -> None:
    digests = []
    for _ in range(2):
        trainer = make_trainer(mode=mode)
        trainer.fit(Batches(make_batches(20)), epochs=2)
        weights = b"".join(p.detach().numpy().tobytes() for p in trainer.model.parameters())
        rows = b"".join(
            chunk.ids.tobytes() + chunk.weights.tobytes() + chunk.state.tobytes()
            for _, chunk in trainer.exchange.rows.cut(still=True)
        )
        digests.append((weights, rows))
        trainer.close()
    assert digests[0] == digests[1]


def test_staleness_is_exact() -> None:
    trainer = make_trainer(mode="hybrid", staleness=3)
    result = trainer.fit(Batches(make_batches(20)))
    assert result.staleness == {0: 1, 1: 1, 2: 1, 3: 17}
    trainer.close()


@pytest.mark.parametrize("mode", ["hybrid", "async"])
def test_staleness_begins_small(mode: str) -> None:
    trainer = make_trainer(mode=mode, staleness=2, staleness_warmup=None)
    assert trainer.fit(Batches(make_batches(50))).staleness == {0: 20, 1: 20, 2: 10}
    # A pass begins with nothing in flight, but does not warm up again.
    assert trainer.fit(Batches(make_batches(50)), epochs=2).staleness == {0: 21, 1: 21, 2: 58}
    trainer.close()


def test_lookahead_issues_tau_ahead() -> None:
    issued: list[int] = []
    seen = []
    for item, _ in lookahead(range(6), issued.append, lambda _: 2):
        seen.append((item, list(issued)))
    assert seen[0] == (0, [0, 1, 2])
    assert seen[3] == (3, [0, 1, 2, 3, 4, 5])
    assert [item for item, _ in seen] == list(range(6))


def test_clip_norm_bounds_the_step() -> None:
    trainer = make_trainer(
        embedding_optimizer=satrap.optim.SGD(lr=1.0),
        dense_optimizer=lambda p: torch.optim.SGD(p, lr=1.0),
        clip_norm=1e-3,
        mode="sync",
    )
    before = [p.detach().clone() for p in trainer.model.parameters()]
    tables = {name: all_rows(trainer, name) for name in FEATURES}
    trainer.fit(Batches(make_batches(1)))
    after = [p.detach() for p in trainer.model.parameters()]
    moved = sum(float(((p - q) ** 2).sum()) for p, q in zip(after, before, strict=True))
    moved += sum(float(((all_rows(trainer, n) - rows) ** 2).sum()) for n, rows in tables.items())
    assert moved**0.5 == pytest.approx(1e-3, rel=1e-2)
    trainer.close()


def test_best_weights_are_restored_when_patience_runs_out() -> None:
    batches = make_batches(15)
    trainer = make_trainer(
        embedding_optimizer=satrap.optim.Adagrad(lr=0.5), patience=2, plateau=0.1, mode="sync"
    )
    validation = Batches(make_batches(10, seed=9))  # labels are noise: training must overfit
    result = trainer.fit(Batches(batches), validation=validation, epochs=30)
    assert result.stopped == "patience"
    best = max(m["auc"] for m in result.history)
    assert result.history[-1]["auc"] < best
    assert result.metrics["auc"] == best
    assert trainer.evaluate(validation)["auc"] == pytest.approx(best, abs=1e-12)
    assert trainer.control.lr_scale < 1
    trainer.close()


@pytest.mark.parametrize(("monitor", "best"), [("auc", max), ("logloss", min)])
def test_the_monitor_decides_which_weights_are_best(monitor: str, best: Any) -> None:
    adagrad = satrap.optim.Adagrad(lr=0.5)
    trainer = make_trainer(embedding_optimizer=adagrad, patience=3, monitor=monitor, mode="sync")
    validation = Batches(make_batches(10, seed=9))
    result = trainer.fit(Batches(make_batches(15)), validation=validation, epochs=5)
    assert result.metrics[monitor] == best(m[monitor] for m in result.history)
    trainer.close()


def test_fit_shows_its_progress_if_it_is_asked_to(capsys: pytest.CaptureFixture[str]) -> None:
    trainer, validation = make_trainer(), Batches(make_batches(2, seed=9))
    trainer.fit(Batches(make_batches(3)), validation=validation)
    assert capsys.readouterr() == ("", "")
    result = trainer.fit(Batches(make_batches(3)), validation=validation, epochs=2, progress=True)
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert [line.split(":")[0] for line in lines if "validation" in line] == [
        "epoch 1 validation",
        "epoch 2 validation",
    ]
    assert f"AUC {result.metrics['auc']:.4f}" in lines[-3]
    assert lines[-2].startswith("6 steps, ")
    trainer.close()


def brier(labels: Any, predictions: Any, weights: Any) -> Any:
    return np.average((labels - predictions) ** 2, weights=weights)


brier.higher_is_better = False  # type: ignore[attr-defined]


def test_a_metric_of_the_users_own_decides_too() -> None:
    adagrad = satrap.optim.Adagrad(lr=0.5)
    trainer = make_trainer(
        embedding_optimizer=adagrad, patience=3, monitor="brier", metrics=(brier,), mode="sync"
    )
    batches = make_batches(10, seed=9)
    result = trainer.fit(Batches(make_batches(15)), validation=Batches(batches), epochs=5)
    values = [found["brier"] for found in result.history]
    assert result.metrics["brier"] == min(values) < values[-1]
    predicted = trainer.predict(Batches(batches))
    truth = np.concatenate([batch.labels for batch in batches if batch.labels is not None])
    weights = [np.ones(b.size) if b.weights is None else b.weights for b in batches]
    expected = np.average((truth - predicted)[:, 0] ** 2, weights=np.concatenate(weights))
    assert result.metrics["brier"] == pytest.approx(expected)
    trainer.close()


def test_without_patience_the_last_weights_are_kept_and_their_metrics_reported() -> None:
    trainer = make_trainer(embedding_optimizer=satrap.optim.Adagrad(lr=0.5), mode="sync")
    validation = Batches(make_batches(10, seed=9))
    result = trainer.fit(Batches(make_batches(15)), validation=validation, epochs=6)
    assert result.history[-1]["auc"] < max(m["auc"] for m in result.history)
    assert result.metrics["auc"] == result.history[-1]["auc"] == trainer.evaluate(validation)["auc"]
    trainer.close()


def test_save_and_load_give_the_same_predictions(tmp_path: Any) -> None:
    schema = make_schema()
    torch.manual_seed(3)
    model = satrap.models.DCNv2(schema, hidden=[16])
    trainer = Trainer(
        model, schema, embedding_optimizer=satrap.optim.Adagrad(lr=0.1), dense_optimizer=adam, mode="sync"
    )
    batches = Batches(make_batches(30))
    trainer.fit(batches)
    trainer.save(str(tmp_path / "model"))
    expected = trainer.predict(batches)
    loaded = Trainer.load(str(tmp_path / "model"), dense_optimizer=adam)
    np.testing.assert_array_equal(loaded.predict(batches), expected)
    trainer.fit(batches)
    loaded.fit(batches)
    np.testing.assert_array_equal(loaded.predict(batches), trainer.predict(batches))
    trainer.close()
    loaded.close()


def test_load_of_own_model_needs_it(tmp_path: Any) -> None:
    trainer = make_trainer()
    trainer.fit(Batches(make_batches(2)))
    trainer.save(str(tmp_path / "m"))
    with pytest.raises(ConfigError, match=r"model=\.\.\."):
        Trainer.load(str(tmp_path / "m"))
    other = Trainer.load(str(tmp_path / "m"), model=Tower())
    other.close()
    trainer.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "eager"}, "mode 'eager' is unknown"),
        ({"staleness": -1}, "staleness must be >= 0"),
        ({"staleness_warmup": -1}, "staleness_warmup must be >= 0"),
        ({"device": "cuda:99"}, "CUDA"),
    ],
)
def test_impossible_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_trainer(**arguments)


@pytest.mark.parametrize("mode", ["sync", "hybrid"])
def test_numbers_classes_and_vectors_equal_plain_pytorch(mode: str) -> None:
    labels = [
        satrap.Label(name="price", kind="regression", loss="huber", mean=100.0, std=20.0),
        satrap.Label(name="color", kind="multiclass", classes=("red", "green", "blue")),
    ]
    features = {**make_schema().features, "text": satrap.Vector(dim=3)}
    schema, rng = satrap.Schema(labels, features), np.random.default_rng(1)
    batches = make_batches(30)
    for batch in batches:
        assert batch.numeric is not None
        text = rng.standard_normal((batch.size, 3)).astype(np.float32)
        batch.numeric = np.concatenate([batch.numeric, text], axis=1)
        targets = rng.normal(100, 20, batch.size), rng.integers(0, 3, batch.size)
        batch.labels = np.stack(targets, axis=1).astype(np.float32)

    def loss(outputs: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
        price = torch.nn.functional.huber_loss(outputs[:, 0], (truth[:, 0] - 100) / 20)
        return (price + torch.nn.functional.cross_entropy(outputs[:, 1:], truth[:, 1].long())) / 2

    torch.manual_seed(3)
    tower = Tower(28, 4)
    plain_tower = copy.deepcopy(tower)
    trainer = Trainer(
        tower,
        schema,
        embedding_optimizer=OPTIMIZERS["adagrad"][0],
        dense_optimizer=adam,
        mode=mode,
        staleness=2,
        store=StoreConfig(initial_scale=0.5),
        training=TrainingOptions(staleness_warmup=0),
    )
    tables = {name: all_rows(trainer, name) for name in FEATURES}
    plain = PlainModel(plain_tower, tables, trainer.staleness, loss)
    oracles = {name: OPTIMIZERS["adagrad"][1]() for name in FEATURES}
    plain.train(batches, oracles, adam(list(plain_tower.parameters())))
    trainer.fit(Batches(batches))
    for mine, theirs in zip(tower.parameters(), plain_tower.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-5)
    predicted = trainer.predict(Batches(batches[:1]))
    with torch.no_grad():
        outputs = plain.outputs(batches[0])
    np.testing.assert_allclose(predicted[:, 0], 100 + 20 * outputs[:, 0], rtol=1e-4)
    np.testing.assert_allclose(predicted[:, 1:], torch.softmax(outputs[:, 1:], 1), rtol=1e-3)


def nowhere(tables: Any) -> Any:
    raise AssertionError("there are no rows to hold")


@pytest.mark.parametrize("settings", [{"mode": "sync"}, {"mode": "sync", "lookahead": 2}, {"mode": "hybrid"}])
def test_numbers_alone_need_no_tables_and_equal_plain_pytorch(settings: Any, tmp_path: Path) -> None:
    features = {"price": satrap.Numeric(), "text": satrap.Vector(dim=3)}
    schema, rng = satrap.Schema(["clicked"], features), np.random.default_rng(1)
    batches = [
        Batch(
            32, {}, rng.standard_normal((32, 4)).astype(np.float32), rng.integers(0, 2, (32, 1)).astype("f")
        )
        for _ in range(40)
    ]
    torch.manual_seed(3)
    tower = Tower(4)
    plain = PlainModel(copy.deepcopy(tower), {}, 0)
    plain.train(batches, {}, adam(list(plain.tower.parameters())))
    with closing(
        Trainer(tower, schema, dense_optimizer=adam, place=WorkerContext(nowhere), **settings)
    ) as trainer:
        trainer.fit(Batches(batches))
        assert trainer.exchange.telemetry.statistics().tables == {}
        trainer.save(str(tmp_path / "model"))
        scores = trainer.predict(Batches(batches[:2]))
    with torch.no_grad():
        outputs = torch.cat([torch.sigmoid(plain.outputs(batch)) for batch in batches[:2]])
    np.testing.assert_allclose(scores, outputs, rtol=1e-5)
    with closing(Trainer.load(str(tmp_path / "model"), Tower(4))) as loaded:
        np.testing.assert_array_equal(loaded.predict(Batches(batches[:2])), scores)
    with closing(Predictor.load(str(tmp_path / "model"), Tower(4))) as predictor:
        np.testing.assert_array_equal(predictor.predict(Batches(batches[:2])), scores)


def test_an_optimizer_that_is_none_is_refused() -> None:
    model = torch.nn.Linear(1, 1)
    for dense, what in (
        (torch.optim.Adam(model.parameters()), "must be a function or None, got a value of type Adam"),
        (1e-3, "must be a function or None, got 0.001"),
        (lambda parameters: None, "returned a value of type NoneType, not an optimizer"),
    ):
        with pytest.raises(ConfigError, match=what):
            make_trainer(dense_optimizer=dense)
    for rows, what in (
        (torch.optim.Adagrad(model.parameters()), "must be an Optimizer, got a value of type Adagrad"),
        (satrap.optim.Adagrad, "must be an Optimizer, got the class Adagrad"),
    ):
        with pytest.raises(ConfigError, match=what):
            make_trainer(embedding_optimizer=rows)


@pytest.mark.parametrize(
    ("model", "schema", "what"),
    [
        (torch.nn.Linear, make_schema(), "model must be a Module, got the class Linear"),
        ("dnn", make_schema(), "model must be a Module, got 'dnn'"),
        (torch.nn.Linear(1, 1), {"user": 8}, "schema must be a Schema, got a value of type dict"),
    ],
)
def test_what_is_no_model_or_schema_is_refused(model: Any, schema: Any, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        Trainer(model, schema, embedding_optimizer=satrap.optim.SGD(lr=0.1))


@pytest.mark.parametrize("observers", [Observer(), [Observer], [print]])
def test_what_is_no_observer_is_refused(observers: Any) -> None:
    trainer = make_trainer()
    with pytest.raises(ConfigError, match=r"observers(.0.)? must be an? (list of )?Observer"):
        trainer.fit(Batches(make_batches(1)), observers=observers)
    trainer.close()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"user": [1]}, "column 'item' is missing"),
        ("rows.csv", r"(?s)the file does not exist.*rows.csv"),
        ([1, 2], r"(?s)type int \(builtins\) is not supported.*argument '(data|validation)'"),
    ],
)
def test_data_that_yields_no_batches_is_refused(data: Any, message: str) -> None:
    trainer = make_trainer()
    for call in (
        lambda: trainer.fit(data),
        lambda: trainer.fit(Batches(make_batches(1)), validation=data),
        lambda: trainer.evaluate(data),
        lambda: trainer.predict(data),
    ):
        with pytest.raises((ConfigError, DataError), match=message):
            call()
    trainer.close()


class Pair(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, batch: satrap.EmbeddedBatch) -> Any:
        return torch.zeros(batch.size), batch


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_model_that_returns_a_tuple_is_refused(precision: str) -> None:
    training = satrap.train.TrainingOptions(precision=precision)
    trainer = make_trainer(model=Pair(), training=training)
    for call in (
        lambda: trainer.fit(Batches(make_batches(1))),
        lambda: trainer.evaluate(Batches(make_batches(1))),
    ):
        with pytest.raises(TrainingError, match="returned a value of type tuple, not a tensor"):
            call()
    trainer.close()


@pytest.mark.parametrize(("value", "what"), [(torch.zeros(32), r"shape \[32\]"), (0.5, "type float")])
def test_a_loss_that_is_not_one_number_is_refused(value: Any, what: str) -> None:
    trainer = make_trainer(loss=lambda logits, batch: value)
    with pytest.raises(TrainingError, match=f"the loss returned a value of {what}"):
        trainer.fit(Batches(make_batches(1)))
    trainer.close()


def test_tables_with_settings_of_their_own_equal_plain_pytorch(tmp_path: Path) -> None:
    own = {
        "user": TableSettings(optimizer=satrap.optim.SGD(lr=0.1), initial_scale=0.25),
        "tags": TableSettings(optimizer=satrap.optim.Adagrad(lr=0.05)),
    }
    trainer = make_trainer(mode="sync", staleness=0, tables=own)
    batches = make_batches(50)
    tower = copy.deepcopy(trainer.model)
    start = {name: all_rows(trainer, name) for name in FEATURES}
    assert [round(float(np.abs(start[name]).max()), 2) for name in FEATURES] == [0.25, 0.5, 0.5]
    plain = PlainModel(tower, start, 0)
    oracles = {
        name: OPTIMIZERS[kind][1]()
        for name, kind in (("user", "sgd"), ("item", "rowwise"), ("tags", "adagrad"))
    }
    plain.train(batches, oracles, adam(list(tower.parameters())))
    trainer.fit(Batches(batches))
    for name in FEATURES:
        expected = plain.bags[name].weight.detach().numpy()
        np.testing.assert_allclose(all_rows(trainer, name), expected, atol=1e-5, rtol=0)
    trainer.save(str(tmp_path))
    loaded = Trainer.load(str(tmp_path), Tower(), dense_optimizer=adam)
    assert loaded.store.tables == own
    for one in (trainer, loaded):
        one.fit(Batches(make_batches(5, seed=7)))
    for name in FEATURES:
        np.testing.assert_array_equal(all_rows(loaded, name), all_rows(trainer, name))
    trainer.close()
    loaded.close()


def test_settings_of_a_table_that_is_none_are_refused() -> None:
    with pytest.raises(
        ConfigError, match="settings are given for table 'usr', which does not exist"
    ) as caught:
        make_trainer(tables={"usr": TableSettings(dtype="bfloat16")})
    assert caught.value.fix == "did you mean 'user'? tables: user, item, tags"


def test_numbers_that_are_not_measured_are_refused_unless_the_loss_is_ones_own() -> None:
    labels = [satrap.Label(name="clicked", kind="regression", std=1.0)]
    schema, batches = satrap.Schema(labels, make_schema().features), Batches(make_batches(3))

    def squared(outputs: torch.Tensor, batch: satrap.EmbeddedBatch) -> torch.Tensor:
        assert batch.labels is not None
        return (outputs - batch.labels).square().mean()

    optimizers: dict[str, Any] = {"embedding_optimizer": satrap.optim.SGD(lr=0.1), "dense_optimizer": adam}
    trainer = Trainer(Tower(), schema, **optimizers)
    with pytest.raises(ConfigError, match="label 'clicked' has no mean and std yet"):
        trainer.fit(batches)
    trainer.close()
    trainer = Trainer(Tower(), schema, loss=squared, **optimizers)
    assert trainer.fit(batches).steps == 3
    trainer.close()


class Over(Workers):
    """A worker of a mesh."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh


def test_a_mesh_decides_how_the_network_takes_its_steps() -> None:
    divided, staged, plain = Over(Mesh(1, 2)), Over(Mesh(pipeline=2)), TrainingOptions()
    for mode, whole in (
        ("sync", DataParallelBackend),
        ("hybrid", DataParallelBackend),
        ("async", RemoteStep),
    ):
        assert _backend(schedule_of(mode, 0), Over(Mesh(2)), plain) is whole
    for mode in ("sync", "hybrid"):
        assert _backend(schedule_of(mode, 0), divided, plain) is ShardedBackend
        for again in (False, True):
            kind = _backend(schedule_of(mode, 0), staged, TrainingOptions(checkpoint_activations=again))
            assert isinstance(kind, partial)
            assert (kind.func, kind.keywords) == (PipelinedBackend, {"recomputes": again})
    others = {"precision": "bfloat16", "microbatches": 2, "checkpoint_activations": True}
    assert _backend(schedule_of("sync", 0), divided, TrainingOptions(**others)) is ShardedBackend


@pytest.mark.parametrize(
    ("mesh", "arguments", "said"),
    [
        (
            Mesh(pipeline=2),
            {"training": TrainingOptions(microbatches=2)},
            "microbatches cannot be combined with mesh.pipeline",
        ),
        (Mesh(1, 2), {"mode": "async"}, "mode: async cannot be combined with mesh.tensor"),
        (Mesh(pipeline=2), {"mode": "async"}, "mode: async cannot be combined with mesh.pipeline"),
        (Mesh(2, sharded=True), {"mode": "async"}, "mode: async cannot be combined with mesh.sharded"),
        (
            Mesh(1, 2),
            {"training": TrainingOptions(compile=True)},
            "compile cannot be combined with mesh.tensor",
        ),
    ],
)
def test_a_mesh_that_shards_the_network_is_checked(mesh: Mesh, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_trainer(place=WorkerContext(workers=Over(mesh)), **arguments)


@pytest.mark.parametrize(
    ("kind", "options", "mode", "said"),
    [
        (CollectiveExchange, {}, "sync", ""),
        (
            CollectiveExchange,
            {},
            "hybrid",
            "mode: hybrid cannot be combined with an exchange that pools rows",
        ),
        (
            CollectiveExchange,
            {"clip_norm": 1.0},
            "sync",
            "clip_norm cannot be combined with an exchange that pools rows",
        ),
        (CollectiveExchange, {"microbatches": 2}, "sync", ""),
        (PooledExchange, {}, "hybrid", ""),
        (
            PooledExchange,
            {"microbatches": 2},
            "sync",
            "microbatches cannot be combined with embedding workers",
        ),
        (PooledExchange, {"clip_norm": 1.0}, "sync", "clip_norm cannot be combined with embedding workers"),
        (LocalExchange, {"clip_norm": 1.0, "microbatches": 2}, "hybrid", ""),
    ],
)
def test_who_pools_rows_decides_what_goes_with_it(
    kind: type[Any], options: dict[str, Any], mode: str, said: str
) -> None:
    exchange = kind.__new__(kind)
    if kind is not LocalExchange:
        by: Any = "owner" if kind is CollectiveExchange else "embedding worker"
        exchange.pooling = Pooling(by, frozenset({"user"}), float)
    arguments = TrainingOptions(**options).settings | {"training.mode": mode}
    with pytest.raises(ConfigError, match=said) if said else nullcontext():
        compatibility.check(arguments | _of_exchange(exchange))
    if kind is CollectiveExchange:
        exchange.pooling = None
        compatibility.check(arguments | _of_exchange(exchange))
        with pytest.raises(ConfigError, match="mode: async cannot be combined with exchange: collective"):
            compatibility.check({"training.mode": "async", **_of_exchange(exchange)})
    if kind is LocalExchange:
        compatibility.check({"training.mode": "async", **_of_exchange(exchange)})
