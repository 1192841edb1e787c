"""A GRU over sequences of different lengths equals PyTorch's, and a loop over events."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from satrap.models.layers.recurrent import GRU, Steps, steps_of

LENGTHS = [3, 0, 5, 1, 5, 2, 0]


def steps(lengths: list[int]) -> Steps:
    return steps_of(np.append(0, np.cumsum(lengths)).astype(np.int64), torch.device("cpu"))


def made(inputs: int = 4, width: int = 3, seed: int = 0) -> GRU:
    torch.manual_seed(seed)
    return GRU(inputs, width).double()


def loop(gru: GRU, x: Tensor, lengths: list[int], gate: Tensor | None = None) -> Tensor:
    """The formula, one event at a time."""
    found, start, width = [], 0, gru.weight_hh.shape[1]
    for length in lengths:
        h = x.new_zeros(width)
        for j in range(start, start + length):
            a, b = gru.weight_ih @ x[j] + gru.bias_ih, gru.weight_hh @ h + gru.bias_hh
            r, u = (a[: 2 * width] + b[: 2 * width]).sigmoid().split(width)
            u = u if gate is None else u * gate[j]
            h = (1 - u) * h + u * torch.tanh(a[2 * width :] + r * b[2 * width :])
            found.append(h)
        start += length
    return torch.stack(found)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("lengths", [LENGTHS, [1], [4], [0, 2], [1, 1, 1]], ids=str)
def test_states_and_gradients_equal_a_loop(lengths: list[int], gated: bool) -> None:
    gru, x = made(), torch.randn(sum(lengths), 4, dtype=torch.float64, requires_grad=True)
    gate = torch.rand(sum(lengths), 1, dtype=torch.float64, requires_grad=True) if gated else None
    found, expected = gru(x, steps(lengths), gate), loop(gru, x, lengths, gate)
    torch.testing.assert_close(found, expected)
    tensors = [x, *gru.parameters(), *([] if gate is None else [gate])]
    upstream = torch.randn_like(expected)
    mine, theirs = (torch.autograd.grad(y, tensors, upstream) for y in (found, expected))
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other)


def test_it_is_the_gru_of_pytorch_with_the_opposite_update_gate() -> None:
    gru, x = made(), torch.randn(sum(LENGTHS), 4, dtype=torch.float64)
    other = nn.GRU(4, 3).double()
    sign = torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64).repeat_interleave(3)
    with torch.no_grad():
        for mine, theirs in zip(
            (gru.weight_ih, gru.weight_hh, gru.bias_ih, gru.bias_hh), other.parameters(), strict=True
        ):
            theirs.copy_(mine * (sign if mine.ndim == 1 else sign.unsqueeze(1)))
        expected = torch.cat([other(part)[0] for part in x.split(LENGTHS) if len(part)])
        torch.testing.assert_close(gru(x, steps(LENGTHS)), expected)


def test_no_events_give_no_states() -> None:
    gru = made()
    for lengths in ([], [0, 0]):
        x = torch.empty(0, 4, dtype=torch.float64, requires_grad=True)
        states = gru(x, steps(lengths))
        assert states.shape == (0, 3)
        states.sum().backward()
        assert x.grad is not None


def test_events_of_a_step_are_contiguous_and_long_sequences_come_first() -> None:
    found = steps([1, 3, 2])
    assert found.order.tolist() == [1, 4, 0, 2, 5, 3]
    assert found.counts == [3, 2, 1]
    assert found.order[found.places].tolist() == list(range(6))
