"""Scores without a trainer are those of the trainer, and nothing changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import satrap
from satrap.errors import CheckpointError, ConfigError
from satrap.store import StoreConfig
from satrap.train import Checkpointing, Predictor
from tests.train.one_trainer import TEST, make_trainer, make_zoo_trainer, scores
from tests.train.plain import Batches, Tower, make_batches, make_schema


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_scores_as_the_trainer_that_saved_it(dtype: str, tmp_path: Path) -> None:
    trainer = make_zoo_trainer(mode="sync", embedding_dtype=dtype)
    trainer.fit(Batches(make_batches(30)))
    trainer.save(str(tmp_path / "model"))
    predictor = Predictor.load(str(tmp_path / "model"))
    np.testing.assert_array_equal(scores(predictor), scores(trainer))
    assert predictor.evaluate(TEST) == trainer.evaluate(TEST)
    assert predictor.statistics().rows == trainer.statistics().rows
    trainer.close()
    predictor.close()


def test_it_reads_a_snapshot_that_was_taken_amid_training(tmp_path: Path) -> None:
    trainer = make_zoo_trainer(mode="sync")
    plan = Checkpointing(str(tmp_path), every_steps=10)
    trainer.fit(Batches(make_batches(10)), checkpoint=plan)
    predictor = Predictor.load(f"{tmp_path}/step-00000010")
    np.testing.assert_array_equal(scores(predictor), scores(trainer))
    trainer.close()
    predictor.close()


def test_it_reads_a_model_that_was_trained_in_async(tmp_path: Path) -> None:
    trainer = make_zoo_trainer(mode="async")
    trainer.fit(Batches(make_batches(12)))
    trainer.save(str(tmp_path / "model"))
    predictor = Predictor.load(str(tmp_path / "model"))
    np.testing.assert_array_equal(scores(predictor), scores(trainer))
    assert set(predictor.statistics().tables) == {"user", "item", "tags"}
    trainer.close()
    predictor.close()


def test_it_learns_and_creates_nothing() -> None:
    trainer = make_trainer()
    trainer.evaluate(Batches(make_batches(5)))
    assert trainer.statistics().rows == 0
    predictor = Predictor(trainer.model, trainer.schema, trainer.exchange)
    before = [p.clone() for p in trainer.model.parameters()]
    assert predictor.evaluate(TEST)["auc"] == trainer.evaluate(TEST)["auc"]
    assert trainer.statistics().rows == 0
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.model.parameters(), strict=True))
    trainer.close()


def test_a_precision_that_does_not_exist_is_refused() -> None:
    trainer = make_trainer()
    with pytest.raises(ConfigError, match="precision 'bf16' is unknown"):
        Predictor(trainer.model, trainer.schema, trainer.exchange, precision="bf16")
    trainer.close()


def test_batches_that_the_caller_reads_are_scored_in_their_order() -> None:
    trainer = make_trainer()
    trainer.fit(Batches(make_batches(10)))
    predictor = Predictor(trainer.model, trainer.schema, trainer.exchange)
    turned = list(predictor.predict_batches(TEST.items[::-1]))[::-1]
    np.testing.assert_array_equal(np.concatenate(turned), scores(predictor))
    trainer.close()


def test_what_cannot_be_loaded_is_refused(tmp_path: Path) -> None:
    trainer = make_trainer(mode="sync")
    trainer.fit(Batches(make_batches(3)))
    url = str(tmp_path / "model")
    trainer.save(url)
    with pytest.raises(ConfigError, match=r"model=\.\.\."):
        Predictor.load(url)
    with pytest.raises(ConfigError, match="differs from the saved one"):
        Predictor.load(url, satrap.models.DCNv2(make_schema(), hidden=[16]))
    with pytest.raises(ConfigError, match="too small for one row"):
        Predictor.load(url, Tower(), store=StoreConfig(memory=1 << 12))
    with pytest.raises(ConfigError, match="CUDA"):
        Predictor.load(url, Tower(), device="cuda:99")
    with pytest.raises(CheckpointError):
        Predictor.load(str(tmp_path / "nothing"))
    predictor = Predictor.load(url, Tower())
    np.testing.assert_array_equal(scores(predictor), scores(trainer))
    predictor.close()
    trainer.close()
