"""Weights are rounded as by the CPU's kernels, and read back exactly."""

from __future__ import annotations

import numpy as np
import pytest

from satrap.optim import SGD
from tests.store.gpu.runs import on_device
from tests.store.gpu.slabs import FORMATS, both, equal

pytestmark = pytest.mark.triton

SPECIAL = np.array(
    [
        0.0,
        -0.0,
        1e-45,
        -1e-40,
        2.0**-24,
        2.0**-25,
        6.1e-5,
        2.0**-14,
        1 / 3,
        -1.0,
        1 + 2.0**-23,
        2047.9,
        65504.0,
    ],
    np.float32,
)


@pytest.mark.parametrize("dtype", FORMATS)
def test_every_size_of_number_is_rounded_as_on_the_cpu(dtype):
    rng = np.random.default_rng(0)
    device, host = both(SGD(lr=1), 40, dtype, slots=300)
    weights = (rng.standard_normal((300, 40)) * 2.0 ** rng.uniform(-30, 14, (300, 40))).astype(np.float32)
    weights[:, : len(SPECIAL)] = SPECIAL
    ids, slots = rng.integers(0, 2**64, 300, np.uint64), np.arange(300, dtype=np.int32)
    state = np.empty((300, 0), np.float32)
    host.write(ids, slots, weights, state)
    device.write(on_device(ids.view(np.int64)), *(on_device(x) for x in (slots, weights, state)))
    equal(device, host, slots)
    read = device.read(on_device(slots))
    device.write(
        on_device(ids[::-1].view(np.int64)), on_device(slots), *read
    )  # stored numbers are not rounded
    equal(device, host, slots)
