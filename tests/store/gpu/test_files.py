"""Files of rows are the same from a device and from RAM, and each reads the other's, on any ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import satrap
from satrap.checkpoint import Checkpoint, Series, write_checkpoint
from satrap.exchange import LocalExchange
from satrap.store import Eviction, Shard, Tier
from satrap.train import Predictor
from tests.contract.parties import SEED, TABLES, FromDevice, assert_equal_contents, local, train
from tests.exchange.collective.parties import Together, members
from tests.exchange.collective.work import STORE, write
from tests.train.plain import Batches, grouped, make_batches, make_schema

pytestmark = pytest.mark.triton

BEHIND: dict[str, Any] = {"memory": 200 * 200, "eviction": Eviction(), "tier": Tier("memory", 1 << 20)}


def on_device(**options: Any) -> LocalExchange:
    return FromDevice(Shard(TABLES, seed=SEED, device="cuda", **{"memory": 1 << 20} | options))


def files(series: Path) -> dict[str, bytes]:
    """The files of rows in a series of checkpoints, by step and name."""
    return {
        f"{path.relative_to(series).parts[0]} {path.name}": path.read_bytes()
        for path in sorted(series.rglob("*"))
        if path.is_file() and path.name.startswith(("rows", "deleted", "table"))
    }


@pytest.mark.parametrize("options", [{}, BEHIND], ids=["device", "device and memory"])
def test_snapshots_and_deltas_have_the_same_bytes(options: dict[str, Any], tmp_path: Path) -> None:
    found = []
    for name, exchange in (("here", local()), ("there", on_device(**options))):
        series = Series(str(tmp_path / name))
        for step, delta in ((1, False), (2, True)):
            train(exchange, steps=2, seed=step)
            write(series, step, exchange.rows.cut(delta=delta))
        found.append(files(tmp_path / name))
        exchange.close()
    assert len(found[0]) >= 2 * len(TABLES)
    assert found[0] == found[1]


@pytest.mark.parametrize(("first", "then"), [(2, 1), (1, 3)])
def test_rows_move_between_devices_ram_and_numbers_of_ranks(first: int, then: int, tmp_path: Path) -> None:
    place = str(tmp_path)
    store = replace(STORE, memory=first << 20, device="cuda")
    ranks = Together(members(first, TABLES, store))
    train(ranks, steps=3, seed=1)  # type: ignore[arg-type]
    write_checkpoint(place, Checkpoint({}, {}, {}, (), rows=ranks.rows.cut(still=True).write))
    here = local()
    here.rows.read(place)
    assert_equal_contents(ranks, here)  # type: ignore[arg-type]
    others = Together(members(then, TABLES, replace(store, memory=then << 20)))
    others.rows.read(place)
    assert_equal_contents(others, here)  # type: ignore[arg-type]
    write_checkpoint(f"{place}/again", Checkpoint({}, {}, {}, (), rows=here.rows.cut(still=True).write))
    there, behind = on_device(), on_device(**BEHIND)
    for exchange in (there, behind):
        exchange.rows.read(f"{place}/again")
        assert_equal_contents(exchange, here)
    for exchange in (ranks, here, others, there, behind):
        exchange.close()


def test_a_model_trained_on_a_device_scores_in_ram(tmp_path: Path) -> None:
    schema, batches, scores = make_schema(), make_batches(3), []
    for name, options in (("here", {}), ("there", {"rows_on": "cuda", "memory": 1 << 20})):
        torch.manual_seed(0)
        model = satrap.models.DNN(schema, hidden=[4])
        grouped_options = grouped(
            embedding_optimizer=satrap.optim.Adagrad(lr=0.05), mode="sync", staleness=0, **options
        )
        trainer = satrap.Trainer(model, schema, **grouped_options)
        trainer.fit(Batches(batches))
        trained = trainer.predict(Batches(batches))
        trainer.save(str(tmp_path / name))
        trainer.close()
        predictor = Predictor.load(str(tmp_path / name))
        np.testing.assert_array_equal(predictor.predict(Batches(batches)), trained)
        predictor.close()
        scores.append(trained)
    np.testing.assert_allclose(scores[0], scores[1], rtol=1e-5)
