"""An update is what lies between two versions of a run, and nothing of it if it is damaged."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest

from satrap.checkpoint import Series
from satrap.checkpoint.chain import deltas_since
from satrap.errors import CheckpointError
from satrap.exchange import LocalExchange
from satrap.serve.versions.update import Update
from satrap.train import Checkpointing, Predictor, Publishing
from tests.support.exact_runs import Dropped, make_trainer, train_data


@pytest.fixture(scope="module")
def feed(tmp_path_factory: pytest.TempPathFactory) -> Series:
    """A feed with a full version and deltas, of a store that evicts."""
    place = tmp_path_factory.mktemp("feed")
    trainer = make_trainer()
    plan = Checkpointing(str(place / "snapshots"), publish=Publishing(str(place / "feed"), every=1e-4))
    trainer.fit(train_data(), checkpoint=plan, epochs=4)
    trainer.close()
    series = Series(str(place / "feed"))
    assert len(series.steps()) > 4
    return series


def rows_of(predictor: Predictor) -> dict[str, list[bytes]]:
    return {
        table: [chunk.ids.tobytes(), chunk.weights.tobytes()]
        for table, chunk in predictor.exchange.rows.cut(still=True)
    }


@pytest.mark.parametrize("to", [1, 3, -1])
def test_an_older_model_and_the_update_are_the_later_model(to: int, feed: Series) -> None:
    first, later = feed.steps()[0], feed.steps()[to]
    old = Predictor.load(feed.place(first), Dropped())
    new = Predictor.load(feed.place(later), Dropped())
    deltas = deltas_since(feed.place(later), feed.manifest(first).id)
    assert deltas is not None
    assert isinstance(old.exchange, LocalExchange)
    update = Update.read(deltas, old.exchange.shard, copy.deepcopy(old.model))
    assert (update.step, update.version) == (later, feed.manifest(later).id)
    while update.overlay.fold():
        pass
    assert rows_of(old) == rows_of(new)
    for name, tensor in update.network.state_dict().items():
        assert np.array_equal(tensor.numpy(), new.model.state_dict()[name].numpy())
    old.close()
    new.close()


def test_a_version_of_another_chain_has_no_update(feed: Series) -> None:
    first, *_, last = feed.steps()
    assert deltas_since(feed.place(last), "0" * 16) is None
    assert deltas_since(feed.place(first), feed.manifest(last).id) is None
    assert deltas_since(feed.place(last), feed.manifest(last).id) == []


def test_a_damaged_delta_changes_nothing_and_is_named(feed: Series) -> None:
    first, *_, last = feed.steps()
    old = Predictor.load(feed.place(first), Dropped())
    before = rows_of(old)
    [file] = Path(feed.place(last)).glob("data-*/table-000*.arrow")
    original = file.read_bytes()
    file.write_bytes(original[:-9] + bytes([original[-9] ^ 1]) + original[-8:])
    try:
        deltas = deltas_since(feed.place(last), feed.manifest(first).id)
        assert deltas is not None
        assert isinstance(old.exchange, LocalExchange)
        with pytest.raises(CheckpointError, match=file.name):
            Update.read(deltas, old.exchange.shard, copy.deepcopy(old.model))
    finally:
        file.write_bytes(original)
    assert rows_of(old) == before
    old.close()
