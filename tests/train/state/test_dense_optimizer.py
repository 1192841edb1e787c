"""The optimizer of a network is described in a checkpoint, and made again from the description."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import satrap
from satrap.dense import offloaded
from satrap.errors import ConfigError
from satrap.train import Trainer
from satrap.train.state.dense_optimizer import DenseOptimizer, described, rebuilt
from tests.train.plain import Batches, Tower, make_batches, make_schema


class Own(torch.optim.SGD):
    """An optimizer that is not in `torch.optim`."""


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
        (torch.optim.Adam, {"lr": 0.01, "betas": (0.8, 0.99), "amsgrad": True}),
        (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.2}),
        (torch.optim.Adagrad, {"lr": 0.1, "initial_accumulator_value": 0.5}),
        (torch.optim.RMSprop, {"lr": 0.1, "centered": True}),
        (torch.optim.NAdam, {"lr": 0.1}),
    ],
)
@pytest.mark.parametrize("off", [False, True])
def test_an_optimizer_of_torch_is_made_again_with_its_arguments(
    kind: type[Any], arguments: dict[str, Any], off: bool
) -> None:
    def make(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return kind(parameters, **arguments)

    parameters = [nn.Parameter(torch.ones(3))]
    first = (offloaded(make) if off else make)(parameters)
    again = rebuilt(json.loads(json.dumps(described(first))))
    assert again is not None
    second = again(parameters)
    assert type(second) is kind
    assert second.defaults == make(parameters).defaults


def test_other_optimizers_are_described_only_by_name() -> None:
    one, two = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    groups = torch.optim.SGD([{"params": [one], "lr": 0.1}, {"params": [two]}], lr=0.2)
    tensor = torch.optim.Adam([one], lr=torch.tensor(0.1))
    for optimizer, name in ((Own([one]), "Own"), (groups, "SGD"), (tensor, "Adam")):
        assert described(optimizer) == {"name": name, "arguments": None}
        assert rebuilt(described(optimizer)) is None
    assert rebuilt(None) is None


@pytest.mark.parametrize(
    "saved", [{"name": "lr_scheduler"}, {"name": "nothing"}, {"name": "Adam", "arguments": {"speed": 1}}]
)
def test_a_description_of_something_else_is_refused(saved: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)):
        rebuilt({"arguments": {}, **saved})


def test_what_makes_no_optimizer_is_refused() -> None:
    with pytest.raises(ConfigError, match="returned a value of type int"):
        DenseOptimizer(lambda _: 1)([])  # type: ignore[arg-type, return-value]
    with pytest.raises(ConfigError, match="cannot be called with a list"):
        DenseOptimizer(lambda: None)([])  # type: ignore[arg-type, misc, return-value]


def test_a_loaded_trainer_trains_on_as_the_first_would_have(tmp_path: Path) -> None:
    batches = make_batches(12)
    schema, optimizer = make_schema(), satrap.optim.Adam(lr=0.01)
    trainer = Trainer(
        Tower(),
        schema,
        embedding_optimizer=optimizer,
        dense_optimizer=lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
        mode="sync",
    )
    trainer.fit(Batches(batches[:6]))
    trainer.save(str(tmp_path / "model"))
    loaded = Trainer.load(str(tmp_path / "model"), Tower())
    for one in (trainer, loaded):
        one.fit(Batches(batches[6:]))
    np.testing.assert_array_equal(trainer.predict(Batches(batches)), loaded.predict(Batches(batches)))
    trainer.close()
    loaded.close()


def test_a_trainer_whose_optimizer_is_unknown_only_scores(tmp_path: Path) -> None:
    data = Batches(make_batches(2))
    trainer = Trainer(Tower(), make_schema(), dense_optimizer=lambda p: Own(p, lr=0.1))
    trainer.fit(data)
    trainer.save(str(tmp_path))
    loaded = Trainer.load(str(tmp_path), Tower())
    assert loaded.predict(data).shape == (64, 1)
    with pytest.raises(ConfigError, match="no dense_optimizer"):
        loaded.fit(data)
    loaded.close()
    trainer.close()


def test_defaults_are_told(caplog: pytest.LogCaptureFixture) -> None:
    Trainer(Tower(), make_schema()).close()
    assert "embedding_optimizer=RowWiseAdagrad(lr=0.05), dense_optimizer=Adam(lr=0.001)" in caplog.text
    caplog.clear()
    Trainer(
        Tower(), make_schema(), embedding_optimizer=satrap.optim.SGD(lr=0.1), dense_optimizer=None
    ).close()
    assert caplog.text == ""
