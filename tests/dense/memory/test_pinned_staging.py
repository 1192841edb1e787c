"""A copy of a weight hands its gradient back; the rest needs CUDA, see `tests/gpu/test_offload.py`."""

from __future__ import annotations

import torch
from torch import nn

from satrap.dense.memory.pinned_staging import Staging, bring


def test_the_gradients_of_a_copy_used_twice_come_back_to_the_weight() -> None:
    weight = nn.Parameter(torch.arange(6.0).view(2, 3))
    cpu = torch.device("cpu")
    one, two = bring(weight, cpu), bring(weight, cpu)
    assert one.data_ptr() != weight.data_ptr()
    torch.testing.assert_close(one, weight, atol=0, rtol=0)
    (3 * one + two * two).sum().backward()
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad, 3 + 2 * weight.detach(), atol=0, rtol=0)
    frozen = bring(nn.Parameter(torch.ones(2), requires_grad=False), cpu)
    assert not frozen.requires_grad


def test_without_parameters_nothing_needs_a_device() -> None:
    assert list(Staging().through([])) == []
