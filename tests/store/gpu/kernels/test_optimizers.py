"""Each optimizer takes the step of the CPU's kernel."""

from __future__ import annotations

import numpy as np
import pytest

from tests.store.gpu.runs import on_device
from tests.store.gpu.slabs import FORMATS, OPTIMIZERS, equal, steps

pytestmark = pytest.mark.triton

ADDS_A_ROW = ("rowwise", "clip", "clip and decay")
"""Optimizers that add up a row: in another order than the CPU unless it has 16 or 32 weights."""


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_optimizer_takes_the_cpus_step(name, dtype):
    equal(*steps(name, 16, dtype, [1] * 30 + [3, 65]))


@pytest.mark.parametrize("dim", [1, 7, 20, 128, 256])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_rows_of_any_width(name, dim):
    device, host, slots = steps(name, dim, "float32", [1] * 20 + [70])
    if name not in ADDS_A_ROW:
        equal(device, host, slots)
    for ours, theirs in zip(device.read(on_device(slots)), host.read(slots), strict=True):
        np.testing.assert_allclose(ours.cpu().numpy(), theirs, rtol=2e-6, atol=1e-6)


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_gradients_whose_squares_overflow_are_clipped():
    def large(gradients):
        gradients[::2] *= 1e25
        gradients[1::2] *= 1e-25

    device, host, slots = steps("clip", 16, "float32", [1] * 30, change=large)
    for ours, theirs in zip(device.read(on_device(slots)), host.read(slots), strict=True):
        np.testing.assert_allclose(ours.cpu().numpy(), theirs, rtol=1e-6)
