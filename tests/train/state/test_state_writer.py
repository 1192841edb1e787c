"""What is written is the state at the cut, however long it takes and whatever happens meanwhile."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from satrap.checkpoint import Checkpoint, Series, read_checkpoint
from satrap.errors import CheckpointError
from satrap.train import Trainer
from satrap.train.state.state_writer import StateWriter
from tests import faults
from tests.support.exact_runs import make_trainer, train_data
from tests.support.trainers import contents


@pytest.fixture
def trainer() -> Any:
    made = make_trainer()
    made.fit(train_data(), steps=5)
    yield made
    made.close()


def writer(trainer: Trainer, place: Path, feed: str | None = None) -> tuple[StateWriter, Series]:
    series = Series(str(place))
    state = trainer.state
    return (
        StateWriter(
            state,
            series,
            lambda cut, workers: Checkpoint(state.settings() | {"told": [w[0] for w in workers]}, {}, {}, ()),
            own=lambda: ({"rank": state.workers.rank}, {}),
            feed=feed,
        ),
        series,
    )


def test_what_changes_while_it_is_written_is_not_in_it(trainer: Trainer, tmp_path: Path) -> None:
    writing, series = writer(trainer, tmp_path)
    rows, weights = contents(trainer), {n: t.clone() for n, t in trainer.model.state_dict().items()}
    go_on = threading.Event()
    with faults.armed("checkpoint.data_written", lambda _: go_on.wait(60)):
        writing.start(delta=None)
        assert writing.busy
        trainer.fit(train_data(), steps=3)
        go_on.set()
        writing.wait()
    assert writing.failure() is None
    found = read_checkpoint(series.place(5))
    assert found.settings["told"] == [{"rank": 0}]
    assert all(torch.equal(found.model[name], tensor) for name, tensor in weights.items())
    assert found.optimizer["state"]
    for table, chunk in found.chunks:
        assert (chunk.ids == rows[table][0]).all()
        assert (chunk.weights == rows[table][1]).all()
        assert (chunk.state == rows[table][2]).all()


def test_for_a_feed_it_leaves_out_what_only_training_needs(trainer: Trainer, tmp_path: Path) -> None:
    writing, series = writer(trainer, tmp_path, feed="float32")
    rows = contents(trainer)
    writing.save(delta=False)
    found = read_checkpoint(series.place(5))
    assert not found.optimizer.get("state")
    for table, chunk in found.chunks:
        assert (chunk.weights == rows[table][1]).all()
        assert chunk.state.shape == (len(chunk.ids), 0)


def test_a_failure_is_told_once_and_the_next_delta_has_its_changes(trainer: Trainer, tmp_path: Path) -> None:
    writing, series = writer(trainer, tmp_path, feed="float32")
    writing.save(delta=False)
    trainer.fit(train_data(), steps=2)
    with faults.armed("checkpoint.data_written", faults.fail(lambda: OSError(28, "no space"))):
        writing.start(delta=True)
        writing.wait()
    assert isinstance(writing.failure(), CheckpointError)
    assert writing.failure() is None
    writing.save(delta=True)
    assert series.manifest(2).delta is not None
    rows = contents(trainer)
    for table, chunk in read_checkpoint(series.place(2)).chunks:
        assert (chunk.ids == rows[table][0]).all()
        assert (chunk.weights == rows[table][1]).all()
