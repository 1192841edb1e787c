"""Dicts of columns become the batches that a file with the same rows gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from torch.utils.data import DataLoader

import satrap
from satrap.data.python_batches import LoaderBatches, PythonBatches, as_batches
from satrap.errors import ConfigError, DataError

SCHEMA = satrap.Schema(
    labels=["clicked"],
    features={
        "user": satrap.Categorical(dim=4, column="user_id"),
        "tags": satrap.Categorical(dim=4, multi=True),
        "price": satrap.Numeric(transform="log1p"),
    },
)
COLUMNS: dict[str, Any] = {
    "user_id": [7, 8, 7],
    "tags": [["a"], [], ["b", "a"]],
    "price": [1.0, 2.0, 3.0],
    "clicked": [0, 1, 1],
    "other": object(),
}


def test_a_batch_equals_that_of_a_table() -> None:
    batch = PythonBatches(SCHEMA).batch({**COLUMNS, "user_id": torch.tensor([7, 8, 7])})
    (read,) = satrap.data.read({k: v for k, v in COLUMNS.items() if k != "other"}, SCHEMA)
    for name, jagged in read.ids.items():
        np.testing.assert_array_equal(batch.ids[name].values, jagged.values)
        np.testing.assert_array_equal(batch.ids[name].offsets, jagged.offsets)
    assert batch.numeric is not None
    assert read.numeric is not None
    np.testing.assert_array_equal(batch.numeric, read.numeric)
    np.testing.assert_array_equal(batch.labels, read.labels)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"price": ["cheap", "2", "3"]}, "batch, row 1, column 'price'"),
        ({"price": [1.0]}, "column 'price' has 1 rows"),
        ({"tags": {"values": ["a"], "lengths": [2, 0, 0]}}, "(?s)offsets must ascend.*batch, column 'tags'"),
        ({"tags": [["a"], 1, 2]}, "batch, column 'tags'"),
    ],
)
def test_errors_name_the_column(change: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        PythonBatches(SCHEMA).batch({**COLUMNS, **change})


def test_a_missing_column_is_named() -> None:
    with pytest.raises(DataError, match=r"(?s)column 'clicked' is missing.*batch"):
        PythonBatches(SCHEMA).batch({k: v for k, v in COLUMNS.items() if k != "clicked"})


ROWS = [{"user_id": i % 7, "tags": i % 3, "price": float(i), "clicked": i % 2} for i in range(60)]
TABLE = {name: [row[name] for row in ROWS] for name in ROWS[0]}
BATCHES = [{name: values[i : i + 20] for name, values in TABLE.items()} for i in range(0, 60, 20)]


def labels(data: Any) -> list[float]:
    return [label for batch in data.batches() for label in batch.labels[:, 0].tolist()]


@pytest.mark.parametrize(
    "data",
    [
        TABLE,
        BATCHES,
        iter(BATCHES),
        (batch for batch in BATCHES),
        DataLoader(ROWS, batch_size=20),  # type: ignore[arg-type]
        list(satrap.data.read(TABLE, SCHEMA, batch_size=20)),
        satrap.data.read(TABLE, SCHEMA, batch_size=20),
        pa.table(TABLE),
        pa.table(TABLE).to_reader(),
        pd.DataFrame(TABLE),
    ],
    ids=lambda data: type(data).__name__,
)
def test_a_trainer_takes_every_kind_of_data(data: Any) -> None:
    assert labels(as_batches(data, SCHEMA)) == [0.0, 1.0] * 30


def test_training_rows_of_a_table_are_shuffled() -> None:
    dataset = as_batches(TABLE, SCHEMA, training=True)
    assert (dataset.settings.shuffle, dataset.settings.training) == (True, True)
    assert not as_batches(TABLE, SCHEMA).settings.shuffle


def test_a_trainer_trains_evaluates_and_predicts_with_python_data() -> None:
    torch.manual_seed(0)
    model = satrap.models.create("dnn", SCHEMA, hidden=[4])
    trainer = satrap.Trainer(model, SCHEMA, mode="sync")
    loader = DataLoader(ROWS, batch_size=20)  # type: ignore[arg-type, var-annotated]
    assert trainer.fit(loader, validation=pd.DataFrame(TABLE), epochs=2).steps == 6
    assert trainer.evaluate(BATCHES) == trainer.evaluate(pa.table(TABLE))
    scores = trainer.predict(TABLE)
    without = {name: values for name, values in TABLE.items() if name != "clicked"}
    assert np.array_equal(trainer.predict(without), scores)
    assert np.array_equal(trainer.predict(iter(BATCHES)), scores)
    trainer.close()


def test_a_second_epoch_of_an_iterator_is_refused() -> None:
    data = as_batches(iter(BATCHES), SCHEMA)
    list(data.batches(0))
    with pytest.raises(DataError, match=r"(?s)can be read only once.*list_iterator"):
        list(data.batches(1))


def test_a_resumed_run_skips_the_batches_of_a_loader(tmp_path: Path) -> None:
    """Also if they have positions in a data set inside."""
    batches = satrap.data.IterableBatches(satrap.data.read(TABLE, SCHEMA, batch_size=10, shuffle=True))
    weights = []
    for stops in ([12], [4, 12]):
        for number, steps in enumerate(stops):
            torch.manual_seed(0)
            trainer = satrap.Trainer(satrap.models.create("dnn", SCHEMA, hidden=[4]), SCHEMA, mode="sync")
            trainer.fit(
                DataLoader(batches, batch_size=None),
                epochs=2,
                steps=steps,
                checkpoint=satrap.train.Checkpointing(str(tmp_path / str(len(stops))), every_steps=4),
                resume=number > 0,
            )
            weights.append([each.detach().clone() for each in trainer.model.parameters()])
            trainer.close()
    for one, other in zip(weights[0], weights[2], strict=True):
        assert torch.equal(one, other)


def test_the_sampler_hears_of_the_epoch() -> None:
    class Sampled(list[Any]):
        def __init__(self, items: Any) -> None:
            super().__init__(items)
            self.sampler, self.epochs = self, list[int]()

        def set_epoch(self, epoch: int) -> None:
            self.epochs.append(epoch)

    data = Sampled(BATCHES)
    list(LoaderBatches(data, SCHEMA).batches(3))
    assert data.epochs == [3, 3]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (iter([]), "no batches: the data is empty"),
        (iter([[1, 2]]), r"(?s)must be a dict of columns, got a value of type list.*list_iterator"),
        (iter([{"user_id": 7, "tags": 1, "price": 1.0, "clicked": 1}]), "batch, column"),
        (iter([{"user": [7]}]), "column 'user_id' is missing"),
    ],
)
def test_unusable_items_are_named(data: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        list(as_batches(data, SCHEMA).batches())


@pytest.mark.parametrize("data", [5, object(), DataLoader, None])
def test_other_data_is_refused_by_name(data: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"(?s)a data source of type .* is not supported.*argument 'validation'"
    ):
        as_batches(data, SCHEMA, name="validation")
