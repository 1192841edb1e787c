"""Rows on a device are those of the CPU's slab."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from satrap.errors import ConfigError, StoreError
from satrap.optim import SGD, Adagrad, Adam
from satrap.schema import Table
from satrap.store.gpu.slab import LARGEST_DIM, DeviceSlab, tile
from satrap.store.row_spec import RowSpec
from tests.store.gpu.runs import DEVICE, on_device, request
from tests.store.gpu.slabs import EDGES, FORMATS, both, equal, slots_of

pytestmark = pytest.mark.triton


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("dim", [1, 3, 8, 16, 20, 100, 128])
def test_first_rows_are_the_cpus(dim, dtype):
    rng = np.random.default_rng(dim)
    device, host = both(Adagrad(lr=1, initial_accumulator=0.25), dim, dtype, tables=2)
    ids = np.concatenate([EDGES, rng.integers(0, 2**64, 60, np.uint64), EDGES])
    runs, splits = request(ids, [0, 65, 70], capacity=80), np.array([0, 65, 70])
    slots = rng.permutation(4000)[:70].astype(np.int32)
    host.initialize(ids, splits, np.arange(70), slots)
    order = runs.order[:70].cpu().numpy()  # of distinct ids
    device.initialize(
        runs,
        slots_of(runs, slots[order]),
        on_device(np.arange(80, dtype=np.int32)),
        on_device(np.array([70], np.int32)),
    )
    equal(device, host, slots)
    some = np.where(rng.random(70) < 0.5, slots, -1).astype(np.int32)
    out = torch.full((80, dim), -7.0, device=DEVICE)
    device.gather(runs, slots_of(runs, some[order]), out, initial=True)
    np.testing.assert_array_equal(out[:70].cpu().numpy(), host.read(slots)[0][order])
    assert (out[70:] == -7).all()
    device.gather(runs, slots_of(runs, some[order]), out)
    assert (out[:70][some[order] < 0] == 0).all()
    np.testing.assert_array_equal(
        out[:70].cpu().numpy()[some[order] >= 0], host.read(slots)[0][order][some[order] >= 0]
    )


@pytest.mark.parametrize(
    ("dim", "dtype", "stride"), [(16, "float32", 192), (7, "bfloat16", 80), (1024, "float16", 10240)]
)
def test_every_part_of_a_row_is_aligned(dim, dtype, stride):
    device = both(Adam(lr=1), dim, dtype, slots=9)[0]
    assert device.rows.shape == (9, stride)
    assert device.bytes == 9 * (stride + 4)
    rng = np.random.default_rng(0)
    slots, ids = np.array([4, -1, 8, 0], np.int32), np.arange(4)
    weights = rng.integers(-9, 9, (4, dim)).astype(np.float32)
    state = rng.random((4, 2 * dim + 1)).astype(np.float32)
    device.rows[:] = 255
    device.write(*(on_device(x) for x in (ids, slots, weights, state)))
    weights[1], state[1] = 0, 0
    for got, want in zip(device.read(on_device(slots)), (weights, state), strict=True):
        np.testing.assert_array_equal(got.cpu().numpy(), want)
    assert (device.rows[[1, 2, 3, 5, 6, 7]] == 255).all()
    assert [len(x) for x in device.read(on_device(slots[:0]))] == [0, 0]


def test_rows_that_are_too_wide_are_refused():
    with pytest.raises(ConfigError, match="at most 1024 weights, not 1025"):
        both(SGD(lr=1), LARGEST_DIM + 1)


def test_a_device_without_room_is_named(monkeypatch):
    kind = RowSpec([Table("a", dim=16)], Adagrad(lr=1), 0)

    def full(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "empty", full)
    with pytest.raises(StoreError, match="no room for 1000 rows of 128 bytes"):
        DeviceSlab(kind, 1000, DEVICE)


@pytest.mark.parametrize("columns", [1, 8, 16, 128, 256, 1024])
@pytest.mark.parametrize("n", [1, 1000, 1 << 22])
def test_tiles_have_whole_warps_and_few_rows_many_programs(columns, n):
    rows, warps = tile(columns, n)
    assert 1 <= warps <= 4
    assert rows & (rows - 1) == 0
    assert rows * columns >= min(128, 1024)
    assert n < 1 << 22 or rows * columns >= 1024
    assert rows == 1 or rows * columns == 128 or n // rows >= 1024
