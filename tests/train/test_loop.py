"""The loop ends where it should, and takes a step whole or not at all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import satrap
from satrap.dense import DataParallelBackend
from satrap.errors import TrainingError
from satrap.exchange import LocalExchange
from satrap.train.progress.fit_stats import FitStats
from satrap.train.step.loss import LabelLoss
from tests.train.one_trainer import all_rows, make_trainer
from tests.train.plain import VOCABULARY, Batches, make_batches


def test_steps_end_the_run_and_leave_no_unused_rows() -> None:
    trainer = make_trainer(mode="hybrid", staleness=4)
    batches = make_batches(30)
    result = trainer.fit(Batches(batches), steps=7, epochs=9)
    assert (result.steps, result.stopped) == (7, "steps")
    touched = {int(i) for b in batches[:7] for i in b.ids["user"].values}
    ids = np.arange(VOCABULARY, dtype=np.uint64)
    assert trainer.exchange.shard.peek("user", ids)[1].sum() == len(touched)
    trainer.close()


def test_non_finite_step_is_refused_whole() -> None:
    batches = make_batches(12)
    assert batches[5].numeric is not None
    batches[5].numeric[3] = np.inf
    trainer = make_trainer(mode="sync")
    result = trainer.fit(Batches(batches))
    assert result.refused == 1

    other = make_trainer(mode="sync")
    other.fit(Batches(batches[:5] + batches[6:]))
    ids = np.unique(np.concatenate([b.ids["user"].values for b in batches]))
    np.testing.assert_array_equal(
        trainer.exchange.shard.peek("user", ids)[0], other.exchange.shard.peek("user", ids)[0]
    )
    trainer.close()
    other.close()


def test_predictions_are_copied_to_the_host_before_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device, the copy would otherwise wait for the steps of network and rows."""
    order: list[str] = []

    def noting(owner: type, name: str) -> None:
        method = getattr(owner, name)

        def noted(self: Any, *arguments: Any, **named: Any) -> Any:
            order.append(name)
            return method(self, *arguments, **named)

        monkeypatch.setattr(owner, name, noted)

    noting(FitStats, "predicted")
    noting(DataParallelBackend, "step")
    noting(LocalExchange, "apply")
    trainer = make_trainer(mode="sync")
    trainer.fit(Batches(make_batches(2)))
    trainer.close()
    assert order == ["predicted", "step", "apply"] * 2


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_gradients_of_rows_alone_refuse_the_step_too(value: float) -> None:
    batches = make_batches(6)

    def loss(logits: torch.Tensor, batch: satrap.EmbeddedBatch) -> torch.Tensor:
        flat = batch.flat()
        if batch.source.numeric is batches[3].numeric:
            flat.register_hook(lambda gradient: gradient.index_fill(1, torch.tensor([0]), value))
        return LabelLoss([satrap.Label(name="clicked")])(logits, batch) + 0 * flat.sum()

    rows = []
    for given, refused in ((batches, 1), (batches[:3] + batches[4:], 0)):
        trainer = make_trainer(mode="sync", loss=loss)
        assert trainer.fit(Batches(given)).refused == refused
        rows.append(all_rows(trainer, "user"))
        trainer.close()
    np.testing.assert_array_equal(*rows)


def test_divergence_ends_the_run() -> None:
    batches = make_batches(120)
    for batch in batches:
        assert batch.numeric is not None
        batch.numeric[:] = np.nan
    trainer = make_trainer()
    with pytest.raises(TrainingError, match="100 steps in a row"):
        trainer.fit(Batches(batches))
    trainer.close()


def test_a_short_run_that_learnt_nothing_fails_and_one_step_is_enough() -> None:
    batches = make_batches(19)
    for batch in batches[1:]:
        assert batch.numeric is not None
        batch.numeric[:] = np.nan
    trainer = make_trainer()
    with pytest.raises(TrainingError, match="nothing was learnt: all 18 steps were refused"):
        trainer.fit(Batches(batches[1:]))
    assert trainer.fit(Batches(batches)).refused == 18
    trainer.close()
