"""A run with shuffled rows and dropout, and all that it leaves, to compare to the bit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import satrap
from satrap.batch import EmbeddedBatch
from satrap.train import Checkpointing, Result, Trainer
from satrap.train.progress import running_metrics
from tests.support.interruptions import KillAt, KilledError
from tests.train.plain import grouped

BATCH, STEPS, EPOCHS = 20, 15, 3
"""A pass has 15 steps, the last one with a smaller batch."""


class Dropped(nn.Module):
    """A network that uses random numbers in training."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(17, 8), nn.Dropout(0.3), nn.BatchNorm1d(8), nn.Linear(8, 1))

    def forward(self, batch: EmbeddedBatch) -> Tensor:
        return self.net(batch.flat()).squeeze(1)


def schema() -> satrap.Schema:
    return satrap.Schema(
        ["y"],
        {"user": satrap.Categorical(dim=8), "item": satrap.Categorical(dim=8), "price": satrap.Numeric()},
    )


def columns(count: int, seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    user, item = random.integers(0, 60, count), random.integers(0, 40, count)
    chance = 1 / (1 + np.exp(-np.random.default_rng(5).normal(size=(60, 40))[user, item]))
    price = random.normal(size=count).astype(np.float32)
    return {"user": user, "item": item, "price": price, "y": (random.random(count) < chance).astype(int)}


def train_data() -> Any:
    rows = columns(BATCH * (STEPS - 1) + 7, 0)
    found = satrap.data.read(rows, schema(), batch_size=BATCH, shuffle=True)
    return found.with_options(seed=3, buffer_rows=100)


def validation_data() -> Any:
    return satrap.data.read(columns(100, 1), schema(), batch_size=50)


def make_trainer(**arguments: Any) -> Trainer:
    torch.manual_seed(11)
    defaults: dict[str, Any] = {
        "embedding_optimizer": satrap.optim.Adagrad(lr=0.1),
        "dense_optimizer": lambda p: torch.optim.Adam(p, lr=0.01),
        "mode": "hybrid",
        "staleness": 3,
        "initial_scale": 0.1,
    }
    return Trainer(Dropped(), schema(), **grouped(**defaults | arguments))


def everything(trainer: Trainer, result: Result) -> dict[str, Any]:
    """All that a run leaves: two runs are the same if this is equal, to the bit."""
    state = trainer.dense.part()
    rows = [
        (table, chunk.ids.tobytes(), chunk.weights.tobytes(), chunk.state.tobytes())
        for table, chunk in trainer.exchange.rows.cut(still=True)
    ]
    optimizer = {
        (i, key): torch.as_tensor(value).numpy().tobytes()
        for i, entry in state.optimizer["state"].items()
        for key, value in entry.items()
    }
    return {
        "model": {name: tensor.numpy().tobytes() for name, tensor in state.weights.items()},
        "optimizer": optimizer,
        "rows": rows,
        "random": torch.get_rng_state().numpy().tobytes(),
        "history": result.history,
        "metrics": result.metrics,
        "counts": (result.steps, result.samples, result.refused, result.stopped, dict(result.staleness)),
        "window": trainer.run.progress.auc,
        "loss": trainer.run.progress.loss,
        "control": (trainer.control.best, trainer.control.bad, trainer.control.lr_scale),
        "store": trainer.statistics().tables["user"].rows,
    }


_UNDISTURBED: dict[str, dict[str, Any]] = {}


def undisturbed(fit: Mapping[str, Any], **arguments: Any) -> dict[str, Any]:
    """What a run leaves that nothing disturbs; it is done once for all that ask for the same one.

    What is validated, if anything, is `validation_data`. A test may patch the window; if it patches anything
    else that the run depends on, no other test may ask for the same run.
    """
    asked = {name: value is not None if name == "validation" else value for name, value in fit.items()}
    key = repr((sorted(asked.items()), sorted(arguments.items()), running_metrics.WINDOW_SAMPLES))
    assert " at 0x" not in key  # an argument that another one may look like
    if key not in _UNDISTURBED:
        _UNDISTURBED[key] = _undisturbed(fit, **arguments)
    return dict(_UNDISTURBED[key])


def _undisturbed(fit: Mapping[str, Any], **arguments: Any) -> dict[str, Any]:
    trainer = make_trainer(**arguments)
    result = trainer.fit(train_data(), **fit)
    left = everything(trainer, result)
    trainer.close()
    return left


def killed_and_resumed(
    place: Path, every: int, kill: int, fit: Mapping[str, Any], delta: int | None = None, **arguments: Any
) -> dict[str, Any]:
    plan = Checkpointing(str(place), every_steps=every, delta_every_steps=delta)
    trainer = make_trainer(**arguments)
    with pytest.raises(KilledError):
        trainer.fit(train_data(), **fit, checkpoint=plan, observers=[KillAt(kill)])
    trainer.close()
    trainer = make_trainer(**arguments)
    torch.manual_seed(999)  # of another process
    result = trainer.fit(train_data(), **fit, checkpoint=plan, resume=True)
    left = everything(trainer, result)
    trainer.close()
    return left


def assert_same(first: dict[str, Any], second: dict[str, Any]) -> None:
    assert first.keys() == second.keys()
    for key in first:
        assert first[key] == second[key], key
