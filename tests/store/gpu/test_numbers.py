"""Numbers of a step in device memory are those that the CPU computes."""

from __future__ import annotations

import numpy as np
import pytest

from satrap.optim import SGD, Adam, AdamW
from satrap.schema import Table
from satrap.store.gpu import slab
from satrap.store.gpu.kernels import formats, gradients, optimizers, rows
from satrap.store.gpu.numbers import KINDS, LONGEST, StepNumbers, corrections
from satrap.store.kernels.optimizers import TABULATED
from satrap.store.row_spec import RowSpec, _corrections
from tests.store.gpu.runs import DEVICE, on_device, request
from tests.store.gpu.slabs import equal, filled, slots_of

pytestmark = pytest.mark.triton


def test_numbers_change_in_place():
    plan = RowSpec([Table("a", dim=4)], AdamW(lr=0.1, weight_decay=0.5), 0).plan
    numbers = StepNumbers(plan, DEVICE)
    where = [x.data_ptr() for x in (numbers.floats, numbers.rate, numbers.noise)]
    assert numbers.floats[6] == np.float32(1 - 0.1 * 0.5)
    numbers.set(0.5, np.uint64(2**64 - 1))
    assert numbers.floats[6] == np.float32(1 - 0.05 * 0.5)
    assert numbers.rate == 0.05
    assert numbers.noise == -1
    numbers.set(1.0, np.uint64(3))
    assert (numbers.rate, numbers.noise) == (0.1, 3)
    assert where == [x.data_ptr() for x in (numbers.floats, numbers.rate, numbers.noise)]


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.0, 0.0), (0.5, 0.9)])
def test_corrections_go_on_until_they_are_one(betas):
    table, first = corrections(*betas), _corrections(*betas)
    n = min(len(table), TABULATED)
    np.testing.assert_array_equal(table[:n], first[:n])
    assert (table[-1] == 1).all()
    assert (first[n:] == 1).all()


def test_corrections_of_slow_moments_end():
    assert len(corrections(0.9, 1 - 1e-9)) == LONGEST


@pytest.mark.parametrize("taken", [4094, 20_000, 1_000_000])
def test_rows_that_took_many_steps(taken):
    rng, ids = np.random.default_rng(0), np.arange(20, dtype=np.uint64)
    device, host, slots = filled(Adam(lr=0.1), 16, "float32", ids, rng)
    weights, state = host.read(slots)
    state[:, -1] = taken
    host.write(ids, slots, weights, state)
    device.write(*(on_device(x) for x in (ids.view(np.int64), slots, weights, state)))
    runs = request(ids)
    for _ in range(3):
        g = rng.standard_normal((20, 16)).astype(np.float32)
        device.step(runs, slots_of(runs, slots), on_device(g))
        host.step(ids, slots, g, 1.0, np.uint64(0))
    equal(device, host, slots)


def test_numbers_of_kinds_are_those_of_the_kernels():
    names = [kind.__name__.removesuffix("Kernel").upper() for kind in KINDS]
    assert names == ["SGD", "MOMENTUM", "ADAGRAD", "ROWWISEADAGRAD", "ADAM", "FTRL"]
    in_kernels = (getattr(optimizers, name.removesuffix("ADAGRAD") or name) for name in names)
    assert [number.value for number in in_kernels] == list(range(6))
    assert [getattr(rows, mode.upper()).value for mode in slab.MODES] == list(range(4))
    assert [getattr(formats, kind.__name__.upper()).value for kind in slab._FORMATS] == list(range(3))
    assert gradients.WINDOW.value == slab.WINDOW
    assert (
        KINDS[StepNumbers(RowSpec([Table("a", dim=4)], SGD(lr=1), 0).plan, DEVICE).kind].__name__
        == "SGDKernel"
    )
