"""A new training takes what matches from another run, and reports the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import satrap
from satrap.errors import ConfigError
from satrap.store import TableSettings
from satrap.train import Trainer
from satrap.train.schema_checks import feature_changes, other_ids
from tests.support.trainers import adam, contents, dense, make_trainer
from tests.train.plain import Batches, Tower, make_batches, make_schema
from tests.train.ranks import fitted, ranks, rows_of, workers

DATA = Batches(make_batches(12))
LATER = Batches(make_batches(8, seed=5))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A trained model, whose optimizers have state."""
    place = str(tmp_path_factory.mktemp("first") / "model")
    trainer = make_trainer(mode="sync")
    trainer.fit(DATA)
    trainer.save(place)
    trainer.close()
    return place


def equal(found: dict[str, Any], expected: dict[str, Any], columns: int = 3) -> None:
    assert found.keys() == expected.keys()
    for table, values in expected.items():
        for mine, theirs in zip(found[table][:columns], values[:columns], strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_with_the_state_it_trains_as_the_first_run_would_have(saved: str) -> None:
    loaded, trainer = Trainer.load(saved, Tower()), make_trainer(mode="sync")
    report = trainer.warm_start(saved, state=True)
    assert report.state == "of rows and network"
    assert (report.fresh_weights, report.fresh_tables, report.unused, report.features) == ({}, {}, [], {})
    assert report.rows == {name: len(rows[0]) for name, rows in contents(loaded).items()}
    for one in (loaded, trainer):
        one.fit(LATER)
    np.testing.assert_array_equal(dense(trainer), dense(loaded))
    equal(contents(trainer), contents(loaded))
    loaded.close()
    trainer.close()


def test_without_the_state_both_optimizers_are_fresh(saved: str) -> None:
    loaded, trainer = Trainer.load(saved, Tower()), make_trainer(mode="sync")
    assert trainer.warm_start(saved).state == "fresh"
    equal(contents(trainer), contents(loaded), columns=2)  # ids and weights
    assert not any(rows[2].any() for rows in contents(trainer).values())
    np.testing.assert_array_equal(dense(trainer), dense(loaded))
    trainer.fit(LATER)
    assert trainer.dense.part().optimizer["state"][0]["step"] == len(LATER.items)
    loaded.close()
    trainer.close()


def test_the_learning_rates_are_those_of_the_new_run(saved: str) -> None:
    trainer = make_trainer(mode="sync", dense_optimizer=lambda p: torch.optim.Adam(p, lr=0.25))
    assert trainer.warm_start(saved, state=True).state == "of rows and network"
    assert [group["lr"] for group in trainer.dense.part().optimizer["param_groups"]] == [0.25]
    trainer.close()


def test_other_optimizers_start_fresh_and_are_named(saved: str) -> None:
    trainer = make_trainer(
        mode="sync",
        dense_optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
        tables={"item": TableSettings(optimizer=satrap.optim.Adam(lr=0.1))},
    )
    report = trainer.warm_start(saved, state=True)
    assert "the network's is fresh: Adam there, SGD here" in report.state
    assert "of table item fresh: another optimizer" in report.state
    rows = contents(trainer)
    assert rows["user"][2].any()
    assert not rows["item"][2].any()
    trainer.fit(LATER)
    trainer.close()


def test_other_features_tables_and_shapes_are_reported_and_start_fresh(saved: str) -> None:
    features = {
        "user": satrap.Categorical(dim=4),
        "item": satrap.Categorical(dim=8, buckets=100),
        "price": satrap.Numeric(missing=1.0),
        "city": satrap.Categorical(dim=8),
    }
    torch.manual_seed(9)
    model = Tower(21)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    schema = satrap.Schema(["clicked"], features)
    trainer = Trainer(model, schema, dense_optimizer=adam)
    report = trainer.warm_start(saved, state=True)
    assert report.fresh_weights == {"net.0.weight": "[16, 25] there, [16, 21] here"}
    assert report.weights == ["net.0.bias", "net.2.weight", "net.2.bias"]
    assert report.fresh_tables == {
        "user": "dim 8 there, 4 here",
        "item": "other buckets of feature item",
        "city": "new",
    }
    assert report.unused == ["table tags"]
    assert report.features == {
        "tags": "dropped",
        "user": "other dim",
        "item": "other buckets",
        "price": "other missing",
        "city": "new",
    }
    assert "because its weights differ" in report.state
    torch.testing.assert_close(model.state_dict()["net.0.weight"], before["net.0.weight"], rtol=0, atol=0)
    assert not torch.equal(model.state_dict()["net.2.weight"], before["net.2.weight"])
    assert trainer.statistics().rows == 0
    text = str(report)
    for part in (
        "starting from step 12 of ",
        "net.0.weight ([16, 25] there",
        "table user (dim 8",
        "tags (dropped)",
    ):
        assert part in text
    trainer.close()


def test_a_run_that_has_nothing_in_common_is_refused(saved: str) -> None:
    schema = satrap.Schema(["clicked"], {"city": satrap.Categorical(dim=2)})
    trainer = Trainer(torch.nn.Linear(2, 1), schema)
    with pytest.raises(ConfigError, match="nothing of the run to start from matches") as caught:
        trainer.warm_start(saved)
    assert "city (new)" in str(caught.value)
    trainer.close()


def test_a_trainer_that_has_trained_is_refused(saved: str) -> None:
    trainer = make_trainer()
    trainer.fit(LATER)
    with pytest.raises(ConfigError, match="has begun to train"):
        trainer.warm_start(saved)
    trainer.close()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_workers_over_shards_start_as_one_process_does(saved: str, mode: str) -> None:
    loaded = Trainer.load(saved, Tower())

    def work(trainer: Trainer, rank: int) -> Any:
        report = trainer.warm_start(saved)
        return report, dense(trainer), fitted(trainer, Batches([]) if rank else Batches(LATER.items[:1]))

    if mode == "async":
        made = make_trainer(mode=mode)
        assert "mode is async" in made.warm_start(saved, state=True).state
        np.testing.assert_array_equal(dense(made), dense(loaded))
        made.fit(Batches(LATER.items[:1]))
        assert np.abs(dense(made) - dense(loaded)).max() < 0.05, "the store was seeded with these weights"
        made.close()
    else:
        found = workers(2, work, mode=mode)
        for report, weights, _ in found:
            assert report.rows == {name: len(rows[0]) for name, rows in contents(loaded).items()}
            np.testing.assert_array_equal(weights, dense(loaded))
    loaded.close()


def test_workers_that_hold_the_rows_start_as_one_process_does(saved: str) -> None:
    loaded = Trainer.load(saved, Tower())

    def work(trainer: Trainer, rank: int) -> Any:
        return trainer.warm_start(saved, state=True), dense(trainer), contents(trainer)

    found = ranks(2, work, mode="sync")
    rows = rows_of([part for _, _, part in found])
    for table, expected in contents(loaded).items():
        order = np.argsort(rows[table][0]), np.argsort(expected[0])
        for mine, theirs in zip(rows[table], expected, strict=True):
            np.testing.assert_array_equal(mine[order[0]], theirs[order[1]])
    for report, weights, _ in found:
        assert report.state == "of rows and network"
        np.testing.assert_array_equal(weights, dense(loaded))
    loaded.close()


def test_features_in_another_order_are_reported() -> None:
    schema = make_schema()
    names = ["item", "user", *list(schema.features)[2:]]
    other = satrap.Schema(["clicked"], {name: schema.features[name] for name in names})
    assert "in another order" in feature_changes(schema, other)["all"]
    assert feature_changes(schema, make_schema()) == {}


def test_ids_of_another_salt_or_another_cut_are_other_ids() -> None:
    one = make_schema(age=satrap.Categorical(dim=8, boundaries=(1.0, 2.0)))
    two = make_schema(age=satrap.Categorical(dim=8, boundaries=(1.0, 3.0)))
    salted = satrap.Schema(["clicked"], one.features, salt=7)
    assert other_ids(one, two, "age") == "other boundaries of feature age"
    assert other_ids(one, two, "user") is None
    assert other_ids(one, salted, "user") == "another salt"
    assert other_ids(make_schema(), one, "age") == "new"
