"""Copies of weights compute the same, and are there only while they are needed."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from satrap.dense.memory.weight_streaming import stream_weights
from tests.dense.networks import OPTIMIZERS, WIDTH, net, train


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_streamed_weights_learn_the_same_to_the_bit(name: str) -> None:
    make, streamed = OPTIMIZERS[name], net()
    stream_weights(streamed, lambda weight: weight.to("cpu", copy=True))
    for one, two in zip(train(streamed, make), train(net(), make), strict=True):
        assert torch.equal(one, two)


def test_copies_are_there_only_while_their_layer_computes() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))
    copies, alive = list[weakref.ref[torch.UntypedStorage]](), list[int]()

    def bring(weight: Tensor) -> Tensor:
        copy = weight.to("cpu", copy=True)
        copies.append(weakref.ref(copy.untyped_storage()))
        return copy

    def count(*_: object) -> None:
        alive.append(sum(one() is not None for one in copies))

    stream_weights(model, bring)
    for layer in model:
        forward: Callable[[Tensor], Tensor] = layer.forward

        def counted(x: Tensor, forward: Callable[[Tensor], Tensor] = forward) -> Tensor:
            found = forward(x)
            count()
            return found

        layer.forward = counted
        layer.register_full_backward_hook(count)
    loss = model(torch.randn(8, WIDTH, requires_grad=True)).sum()
    count()
    assert alive == [0] * 5  # not even while the other layers compute
    assert len(copies) == 8
    loss.backward()
    count()
    assert len(copies) == 12  # weights again, and no bias
    assert alive[5:] == [0] * 5


def test_within_a_layer_its_copies_are_there() -> None:
    """That the weak references above see what is alive."""
    model, seen = nn.Sequential(nn.Linear(WIDTH, WIDTH)), list[object]()
    copies = list[weakref.ref[torch.UntypedStorage]]()

    def bring(weight: Tensor) -> Tensor:
        copy = weight.to("cpu", copy=True)
        copies.append(weakref.ref(copy.untyped_storage()))
        return copy

    class Watching(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            seen.extend(one() is not None for one in copies)
            return super().forward(x)

    model[0] = Watching(WIDTH, WIDTH)
    stream_weights(model, bring)
    model(torch.randn(8, WIDTH))
    assert seen == [True, True]


def test_a_forward_pass_that_fails_leaves_the_weights_in_place() -> None:
    model = net()
    before = dict(model.named_parameters())
    stream_weights(model, lambda weight: weight.to("cpu", copy=True))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        model(torch.randn(16, 3))
    after = dict(model.named_parameters())
    assert all(after[name] is parameter for name, parameter in before.items())
