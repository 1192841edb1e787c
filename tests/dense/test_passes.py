"""What stages hand on; the passes themselves are in `tests/cluster/test_pipelines.py`."""

from __future__ import annotations

import pytest
import torch

from satrap.dense.passes import Boundary, _Received, _Sent
from satrap.errors import ConfigError


def test_a_tensor_filled_up_and_cut_off_is_the_same_and_so_is_its_gradient() -> None:
    x = torch.randn(3, 2, requires_grad=True)
    sent = _Sent.apply(x, 5)
    assert sent.shape == (5, 2)
    assert sent[3:].eq(0).all()
    received = _Received.apply(sent, 3)
    torch.testing.assert_close(received, x)
    (received**3).sum().backward()
    torch.testing.assert_close(x.grad, 3 * x.detach() ** 2)


def test_a_gradient_to_be_sent_is_contiguous() -> None:
    """That of an operand of `cat` is a view with strides, which cannot be sent."""
    x = torch.randn(3, 2, requires_grad=True)
    strides = list[bool]()
    x.register_hook(lambda gradient: strides.append(gradient.is_contiguous()))
    (torch.cat([_Received.apply(x, 3), torch.ones(3, 1)], dim=1) * 2).sum().backward()
    assert strides == [True]


def test_a_boundary_has_samples_first() -> None:
    boundary = Boundary.of(torch.zeros(2, 3, dtype=torch.float64, requires_grad=True), 2)
    assert boundary == Boundary((3,), torch.float64, True)
    example = boundary.example(7)
    assert (example.shape, example.dtype, example.requires_grad) == ((7, 3), torch.float64, True)
    assert not Boundary.of(torch.zeros(2, dtype=torch.int64), 2).example(1).requires_grad
    for wrong in (torch.zeros(3, 2), torch.zeros(())):
        with pytest.raises(ConfigError, match="would hand on a tensor of shape"):
            Boundary.of(wrong, 2)
