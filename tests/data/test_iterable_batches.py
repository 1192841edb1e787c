"""A `DataLoader` reads the rows of a data set, in one process and in several."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import satrap
from satrap.data import IterableBatches, read
from satrap.errors import ConfigError

SCHEMA = satrap.Schema([], {"x": satrap.Numeric()})
X = np.arange(1000, dtype=np.float32)


def rows_of(loader: DataLoader[satrap.Batch]) -> np.ndarray:
    return np.concatenate([batch.numeric[:, 0] for batch in loader])  # type: ignore[index]


def test_a_loader_gives_the_batches_of_the_data_set() -> None:
    dataset = read({"x": X}, SCHEMA, batch_size=64, shuffle=True)
    batches = IterableBatches(dataset)
    loader = DataLoader(batches, batch_size=None)
    for epoch in (0, 3):
        batches.set_epoch(epoch)
        expected = np.concatenate([batch.numeric[:, 0] for batch in dataset.batches(epoch)])  # type: ignore[index]
        assert np.array_equal(rows_of(loader), expected)
        assert not np.array_equal(expected, X)


def test_processes_of_a_loader_share_the_rows_and_see_the_epoch() -> None:
    dataset = read({"x": X}, SCHEMA, batch_size=64, shuffle=True).with_options(worker=1, workers=2)
    batches = IterableBatches(dataset)
    loader = DataLoader(batches, batch_size=None, num_workers=2, persistent_workers=True)
    own = np.sort(np.concatenate([batch.numeric[:, 0] for batch in dataset]))  # type: ignore[index]
    first = rows_of(loader)
    batches.set_epoch(1)
    second = rows_of(loader)
    for rows in (first, second):
        assert np.array_equal(np.sort(rows), own)
    assert not np.array_equal(first, second)
    del loader


def test_a_trainer_takes_the_loader() -> None:
    columns = {"x": X, "y": (X > 500).astype(np.int64)}
    schema = satrap.Schema(["y"], SCHEMA.features)
    weights = []
    data = read(columns, schema, batch_size=100, shuffle=True)
    for given in (data, DataLoader(IterableBatches(data), batch_size=None)):
        torch.manual_seed(0)
        trainer = satrap.Trainer(satrap.models.create("lr", schema), schema, mode="sync")
        trainer.fit(given, epochs=2)
        weights.append([each.detach().clone() for each in trainer.model.parameters()])
        trainer.close()
    for one, other in zip(*weights, strict=True):
        assert torch.equal(one, other)


def test_an_epoch_below_zero_is_refused() -> None:
    with pytest.raises(ConfigError, match="epoch must be >= 0, got -1"):
        IterableBatches(read({"x": X}, SCHEMA)).set_epoch(-1)
