"""Gradients are read for the check only if no kernel has checked them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from satrap.embedding.pooling import Bag, pool_beside
from satrap.runtime.finite_gradients import all_finite


@pytest.mark.parametrize("dim", [3, 64])
def test_gradients_that_were_seen_finite_are_not_read_again(dim: int) -> None:
    inverse, numeric = np.array([0, 1, 0, 2, 2, 1], np.int32), torch.zeros(3, 1)
    bags = [Bag(inverse, 0, 6, features=2)]

    def gradient(factor: float = 1.0, times: int = 1) -> torch.Tensor:
        """Return a leaf with its gradient."""
        leaf = torch.zeros(3, dim, requires_grad=True)
        for flat in [pool_beside(leaf, bags, numeric) for _ in range(times)]:
            (flat * torch.tensor(factor)).sum().backward()  # type: ignore[no-untyped-call]
        assert leaf.grad is not None
        return leaf

    known = gradient()
    assert all_finite([known])
    assert known.grad is not None
    known.grad.numpy()[0, 0] = np.nan  # nobody does this; it shows that the numbers are not read
    assert all_finite([known])
    known.grad.mul_(1.0)  # a change that PyTorch knows of: they are read
    assert not all_finite([known])
    assert not all_finite([gradient(float("inf"))])
    assert not all_finite([gradient(float("nan"))])
    assert not all_finite([gradient(1e38, times=3)]), "each is finite, their sum is not"
    assert all_finite([gradient(1.0, times=3)])
