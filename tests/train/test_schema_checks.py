"""A model or data of another schema, and batches that lack something, are refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import satrap
from satrap.config.keys.sections import Sections
from satrap.errors import ConfigError, DataError, StoreError
from satrap.optim import EMBEDDING_DEFAULT
from satrap.train import Trainer
from satrap.train.trainer import adam
from tests.train.plain import Batches, Tower, make_batches, make_schema

SCHEMA = make_schema()
COLUMNS = {"user": [1, 2], "item": [1, 2], "tags": [[1], [2]], "price": [0.5, 1.0], "clicked": [0, 1]}
USER = satrap.Categorical(dim=8)


@pytest.fixture
def trainer() -> Iterator[Trainer]:
    made = Trainer(satrap.models.DNN(SCHEMA, hidden=[4]), SCHEMA)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("schema", "what"),
    [
        (make_schema(brand=USER), "feature 'brand' is missing"),
        (make_schema(user=satrap.Numeric()), "feature 'user' is Categorical in one and Numeric in the other"),
        (make_schema(user=satrap.Categorical(dim=4)), "dim of feature 'user' is 8 in one and 4 in the other"),
        (satrap.Schema(["y"], {"user": USER}), "the model has no feature 'item'"),
        (
            satrap.Schema(["y", "z"], SCHEMA.features),
            "the model has 2 outputs, but the labels of the",
        ),
        (satrap.Schema(["y"], dict(reversed(SCHEMA.features.items()))), "its features are in another order"),
    ],
)
def test_a_model_of_another_schema_is_refused(schema: satrap.Schema, what: str) -> None:
    for model in (satrap.models.LR(schema), satrap.models.LR(schema=schema)):
        with pytest.raises(ConfigError, match=what):
            Trainer(model, SCHEMA)


def test_a_model_keeps_no_schema_among_its_arguments() -> None:
    """They are written to checkpoints as JSON."""
    model = satrap.models.DNN(schema=SCHEMA, hidden=[4])
    assert satrap.models.describe(model) == {"name": "dnn", "arguments": {"hidden": [4]}}


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"features": {"item": USER}}, "feature 'user' is missing"),
        ({"user": replace(USER, buckets=5)}, "buckets of feature 'user' is 5 in one and None in the other"),
        ({"price": satrap.Numeric(transform="log1p")}, "transform of feature 'price' is 'log1p' in one"),
        ({"salt": 3}, "the data's salt is 3, the trainer's is 0"),
        ({"labels": ["user"]}, r"the data's labels are \['user'\], the trainer's are \['clicked'\]"),
        ({"labels": [satrap.Label(name="clicked", threshold=0.5)]}, "the label columns are converted"),
    ],
)
def test_data_of_another_schema_is_refused(trainer: Trainer, changes: dict[str, Any], what: str) -> None:
    features = changes.pop("features", None) or {**SCHEMA.features, **changes}
    rest = {key: features.pop(key) for key in ("salt", "labels") if key in features}
    labels = rest.get("labels", ["clicked"])
    data = satrap.data.read(COLUMNS, satrap.Schema(labels, features, salt=rest.get("salt", 0)))
    for call in (trainer.fit, trainer.evaluate, *([] if "labels" in rest else [trainer.predict])):
        with pytest.raises(ConfigError, match=f"the data is read with another schema: {what}"):
            call(data)
    assert trainer.fit(data.with_options(schema=trainer.schema)).steps == 1


def test_data_may_have_what_scoring_does_not_need(trainer: Trainer) -> None:
    renamed = {"who": COLUMNS["user"], **{name: COLUMNS[name] for name in ("item", "tags", "price")}}
    schema = make_schema(user=satrap.Categorical(dim=8, column="who")).without_labels()
    expected = trainer.predict(satrap.data.read(COLUMNS, SCHEMA))
    assert expected.shape == (2, 1)
    np.testing.assert_array_equal(trainer.predict(satrap.data.read(renamed, schema)), expected)


def test_predict_returns_the_batches_of_its_stream_in_one_array(trainer: Trainer) -> None:
    batches = Batches(make_batches(3))
    parts = list(trainer.predict(batches, stream=True))
    np.testing.assert_array_equal(trainer.predict(batches), np.concatenate(parts))
    assert trainer.predict(Batches([])).shape == (0, 1)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda batch: replace(batch, ids={"user": batch.ids["user"]}), "a batch has no feature 'item'"),
        (lambda batch: replace(batch, numeric=None), "0 columns of numbers, but the schema has 1"),
        (lambda batch: replace(batch, labels=None), "a batch of 32 samples has no labels"),
        (lambda batch: {"user": [1]}, "batches must be satrap.Batch, got a value of type dict"),
    ],
)
def test_batches_that_lack_something_are_refused(trainer: Trainer, change: Any, what: str) -> None:
    data: Any = SimpleNamespace(batches=lambda epoch=0, position=None: map(change, make_batches(1)))
    for call in (trainer.fit, trainer.evaluate):
        with pytest.raises(DataError, match=what):
            call(data)


class Silent(torch.nn.Module):
    """A network without forward."""


class Late(Tower):
    """A network that fails on its second batch, by a fault of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def forward(self, batch: satrap.EmbeddedBatch) -> torch.Tensor:
        self.count += 1
        if self.count > 1:
            raise KeyError("brand")
        return super().forward(batch)


@pytest.mark.parametrize("model", [torch.nn.Linear(1, 1), Silent(), Tower(inputs=7)])
def test_a_network_that_is_no_model_is_refused(model: torch.nn.Module) -> None:
    trainer = Trainer(model, SCHEMA, embedding_optimizer=satrap.optim.SGD(lr=0.1), dense_optimizer=None)
    with pytest.raises(ConfigError, match=f"{type(model).__name__} failed on its first batch") as caught:
        trainer.evaluate(Batches(make_batches(1)))
    assert "EmbeddedBatch" in caught.value.why
    trainer.close()


def test_a_later_error_of_a_model_is_its_own() -> None:
    trainer = Trainer(Late(), SCHEMA)
    with pytest.raises(KeyError, match="brand"):
        trainer.evaluate(Batches(make_batches(2)))
    trainer.close()


def test_a_closed_trainer_says_so(tmp_path: Path) -> None:
    trainer = Trainer(satrap.models.DNN(SCHEMA, hidden=[4]), SCHEMA)
    data = Batches(make_batches(1))
    trainer.fit(data)
    trainer.close()
    trainer.close()
    for call in (
        lambda: trainer.fit(data),
        lambda: trainer.evaluate(data),
        lambda: trainer.predict(data),
        lambda: trainer.save(str(tmp_path)),
        trainer.statistics,
    ):
        with pytest.raises(ConfigError, match="is closed"):
            call()
    with pytest.raises(StoreError, match="the store is closed"):
        trainer.exchange.flush()


def test_objects_say_shortly_what_they_are() -> None:
    trainer = Trainer(satrap.models.DNN(SCHEMA, hidden=[4]), SCHEMA)
    result = trainer.fit(Batches(make_batches(2)), validation=Batches(make_batches(1)))
    assert repr(trainer) == "Trainer(DNN, 4 features, labels=['clicked'], mode=hybrid, staleness=4, steps=2)"
    assert repr(result).startswith("Result(steps=2, samples=64, seconds=0.")
    assert len(repr(result)) < 300
    trainer.close()
    data = satrap.data.read(COLUMNS, SCHEMA)
    assert repr(data) == "Dataset(dict, 4 features, labels=['clicked'], batch_size=4096, shuffle=False)"
    shard = satrap.store.Shard([satrap.Table("user", dim=4, optimizer=satrap.optim.SGD(lr=0.1))])
    shard.lookup("user", np.arange(3, dtype=np.uint64))
    assert repr(shard).startswith("Shard(tables=['user'], rows=3, memory=")
    shard.close()
    assert repr(shard) == "Shard(closed)"
    assert repr(USER) == "Categorical(dim=8)"
    assert repr(satrap.Label(name="y")) == "Label(name='y')"
    batch = repr(make_batches(1)[0])
    assert batch.startswith("Batch(size=32, ids={'user': Jagged(values=uint64[32])")
    assert "labels=float32[32, 1]" in batch


def test_the_defaults_are_those_of_recipes() -> None:
    embedding, dense = Sections.model_fields["embedding"], Sections.model_fields["dense"]
    assert embedding.default.optimizer == EMBEDDING_DEFAULT
    trainer = Trainer(satrap.models.DNN(SCHEMA, hidden=[4]), SCHEMA)
    [group] = adam(list(trainer.model.parameters())).param_groups
    wanted = dense.default.optimizer.model_dump()
    assert wanted.pop("name") == "adam"
    assert {key: list(group[key]) if key == "betas" else group[key] for key in wanted} == wanted
    assert trainer.embedding_optimizer == EMBEDDING_DEFAULT
    trainer.close()
