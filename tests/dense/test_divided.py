"""Optimizers that a network in parts can have; what it learns is in `test_backend` and `test_meshes`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from satrap.dense.divided import check_separable
from satrap.errors import ConfigError


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
        lambda p: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.1),
        lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True),
        lambda p: torch.optim.AdamW(p, lr=0.1),
    ],
)
def test_optimizers_that_look_at_each_number_by_itself(make: Callable[[Any], torch.optim.Optimizer]) -> None:
    check_separable(make)


def test_an_optimizer_that_looks_at_whole_weights_is_refused() -> None:
    with pytest.raises(ConfigError, match="Adafactor does not go with a network in parts"):
        check_separable(lambda p: torch.optim.Adafactor(p, lr=0.1))
