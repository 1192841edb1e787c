"""Networks whose blocks compute their activations twice learn the same, to the bit, and keep less."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from satrap import models
from satrap.dense.memory.activation_checkpoint import _segments, checkpoint_activations
from satrap.errors import ConfigError
from satrap.models.multitask.experts import Experts
from tests.models.retrieval.histories import NAMES as NEXT_ITEM
from tests.models.sequence.histories import NAMES as HISTORIES
from tests.support.trainers import alone, assert_same, make_trainer
from tests.train.plain import Batches, Tower, make_batches, make_schema


def stack(layers: int) -> nn.Sequential:
    made = [(nn.Linear(16, 16), nn.GELU(), nn.Dropout(0.3)) for _ in range(layers)]
    return nn.Sequential(*(module for layer in made for module in layer))


class Residual(nn.Module):
    """A block with a choice of inputs, as users write them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = stack(2)

    def forward(self, x: Tensor, *, scale: float) -> Tensor:
        return x + scale * self.inner(x)


class Listed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList(Residual() for _ in range(4)), nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, scale=0.5)
        return self.head(x)


def computed(model: nn.Module) -> tuple[int, list[Tensor]]:
    """Return the numbers kept for the backward pass, weights aside, and the result and all gradients."""
    torch.manual_seed(1)
    x = torch.randn(64, 16, requires_grad=True)
    weights = {p.data_ptr() for p in model.parameters()}
    kept = dict[int, int]()

    def keep(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in weights:
            kept[tensor.data_ptr()] = tensor.numel()
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        result = model(x)
    result.sum().backward()
    assert x.grad is not None
    return sum(kept.values()), [result, x.grad, *(p.grad for p in model.parameters() if p.grad is not None)]


def experts() -> nn.Module:
    return Experts(3, 16, [16] * 9, dropout=0.3, batch_norm=False)


@pytest.mark.parametrize(
    "make", [lambda: stack(9), Listed, lambda: nn.Sequential(Listed(), nn.Linear(1, 1)), experts]
)
def test_the_same_bits_from_less_memory(make: Any) -> None:
    torch.manual_seed(0)
    plain = make()
    again = copy.deepcopy(plain)
    checkpoint_activations(again)
    assert list(again.state_dict()) == list(plain.state_dict())
    (much, expected), (little, found) = computed(plain), computed(again)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
    # Only boundaries are kept: three in a stack of nine layers, which keep three tensors each.
    assert little < much / 3


@pytest.mark.parametrize(
    ("layers", "lengths"),
    [(1, [1]), (2, [2]), (3, [2, 1]), (4, [2, 2]), (5, [3, 2]), (9, [3, 3, 3]), (10, [4, 4, 2])],
)
def test_a_stack_is_cut_into_about_the_root_of_its_layers(layers: int, lengths: list[int]) -> None:
    modules = [nn.Flatten(), *stack(layers)]
    segments = _segments(modules)
    assert [sum(isinstance(one, nn.Linear) for one in segment) for segment in segments] == lengths
    assert [one for segment in segments for one in segment] == modules
    assert all(isinstance(segment[0], nn.Linear) for segment in segments[1:])
    assert _segments(modules[:1]) == [modules[:1]]


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in models.names()
        if name not in ("lr", "fm", "two_tower", "esmm", *HISTORIES, *NEXT_ITEM)
    ],
)
def test_every_shipped_network_with_layers_has_blocks(name: str) -> None:
    checkpoint_activations(models.create(name, make_schema()))


class Dropping(Tower):
    """Dropout beside a stack."""

    def __init__(self) -> None:
        super().__init__()
        self.net.insert(2, nn.Dropout(0.5))


@pytest.mark.parametrize(
    "options", [{}, {"precision": "bfloat16"}, {"precision": "float16", "microbatches": 3}], ids=str
)
def test_a_run_is_the_same_to_the_bit(options: dict[str, Any]) -> None:
    data, found = Batches(make_batches(20)), []
    for again in (False, True):
        torch.manual_seed(3)
        found.append(alone(data, model=Dropping(), checkpoint_activations=again, **options))
    assert_same(*found)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (nn.Sequential(nn.Linear(25, 4), nn.BatchNorm1d(4)), "batch normalization: 1"),
        (nn.Linear(25, 1), "found no blocks in Linear"),
    ],
)
def test_networks_that_cannot_are_refused(model: nn.Module, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_trainer(model=model, checkpoint_activations=True)
