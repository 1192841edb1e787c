"""Pooling in the memory of a device, and its gradients, are those of `satrap.store.pool`."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from satrap.optim import SGD
from satrap.store import gather_features, gather_features_backward, pool, pool_backward
from satrap.store.gpu.slab import MODES, DeviceBag, Sources
from tests.store.gpu.runs import DEVICE, on_device, request
from tests.store.gpu.slabs import EDGES, equal, filled, slots_of

pytestmark = pytest.mark.triton

SAMPLES = 40


class Batch:
    """Two features of SAMPLES samples: one id each, then bags of 0 to 9 ids, both slabs and a request."""

    def __init__(self, dim, mode="sum", weighted=False, dtype="float32"):
        self.rng = rng = np.random.default_rng(dim)
        lengths = rng.integers(0, 10, SAMPLES)
        lengths[[0, -1]] = 0
        self.offsets = np.append(0, np.cumsum(lengths))
        n = SAMPLES + self.offsets[-1]
        ids = rng.choice(np.append(EDGES, np.arange(10, 40, dtype=np.uint64)), n)
        self.weights = rng.normal(1, 1, self.offsets[-1]).astype(np.float32) if weighted else None
        if weighted:
            self.weights[self.offsets[1] : self.offsets[2]] = 0  # a divisor of 0
        self.runs, self.mode, self.dim = request(ids, capacity=n + 50), mode, dim
        distinct = self.runs.ids[: int(self.runs.runs)].cpu().numpy().view(np.uint64)
        self.device, self.host, self.found = filled(SGD(lr=0.1), dim, dtype, distinct, rng)
        self.distinct, self.slots = distinct, slots_of(self.runs, self.found)
        self.rows = self.host.read(self.found)[0]
        self.inverse = self.runs.inverse[:n].cpu().numpy()
        offsets = on_device(self.offsets.astype(np.int32))
        weights = None if self.weights is None else on_device(self.weights)
        self.bag = DeviceBag(SAMPLES, n, offsets, mode, weights)
        self.alone = DeviceBag(0, SAMPLES, on_device(np.arange(SAMPLES + 1, dtype=np.int32)))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_pooled_rows_and_their_gradients(mode, weighted):
    b = Batch(16, mode, weighted)
    block = torch.full((SAMPLES, 2, 16), -7.0, device=DEVICE)
    chosen = torch.full((SAMPLES, 2, 16), -7, dtype=torch.int32, device=DEVICE)
    b.device.gather_positions(b.runs, b.slots, block[:, :1])
    b.device.pool(b.runs, b.slots, b.bag, block[:, 1], chosen=chosen[:, 1])
    plain, bags = b.inverse[:SAMPLES], b.inverse[SAMPLES:]
    one = gather_features(b.rows, plain, 1)[:, 0]
    two, argmax = pool(b.rows, bags, b.offsets, mode=mode, weights=b.weights)
    np.testing.assert_array_equal(block[:, 0].cpu().numpy(), one)
    np.testing.assert_array_equal(block[:, 1].cpu().numpy(), two)
    if mode == "max":
        np.testing.assert_array_equal(chosen[:, 1].cpu().numpy(), np.where(argmax < 0, -1, argmax + SAMPLES))

    gradients = b.rng.standard_normal((SAMPLES, 2, 16)).astype(np.float32)
    capacity = len(b.runs.order)
    rows = torch.full((capacity,), 2**31 - 1, dtype=torch.int32, device=DEVICE)
    scale = torch.full((capacity,), torch.nan, device=DEVICE)
    sources = Sources(rows, scale, chosen.view(-1, 16) if mode == "max" else None)
    b.device.trace(b.alone, sources, 0, 2)
    b.device.trace(b.bag, sources, 1, 2)
    b.device.step(b.runs, b.slots, on_device(gradients), sources)
    total = gather_features_backward(gradients[:, :1], plain, len(b.rows))
    pool_backward(
        gradients[:, 1], bags, b.offsets, len(b.rows), mode=mode, weights=b.weights, argmax=argmax, into=total
    )
    b.host.step(b.distinct, b.found, total, 1.0, np.uint64(0))
    equal(b.device, b.host, b.found)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("dim", [1, 20, 64, 200])
def test_other_widths_and_formats(dim, dtype):
    b = Batch(dim, "mean", dtype=dtype)
    for kind in (torch.float32, torch.bfloat16, torch.float16):
        out = torch.full((SAMPLES, dim), -7.0, dtype=kind, device=DEVICE)
        b.device.pool(b.runs, b.slots, b.bag, out)
        want = torch.from_numpy(pool(b.rows, b.inverse[SAMPLES:], b.offsets, mode="mean")[0]).to(kind)
        rounding = (
            2**-7 if kind is torch.bfloat16 and DEVICE.type == "cpu" else 0
        )  # the interpreter cuts bits off
        torch.testing.assert_close(out.cpu(), want, rtol=rounding, atol=0)


@pytest.mark.parametrize("mode", ["sum", "max"])
def test_ids_without_a_row_have_their_first_weights(mode):
    b = Batch(12, mode)
    some = b.found.copy()
    some[::3] = -1
    slots = slots_of(b.runs, some)
    for initial in (False, True):  # rows in this test are first rows
        out = torch.empty(SAMPLES, 12, device=DEVICE)
        b.device.pool(b.runs, slots, b.bag, out, initial=initial, chosen=torch.empty_like(out).int())
        rows = b.rows if initial else np.where((some < 0)[:, None], np.float32(0), b.rows)
        np.testing.assert_array_equal(
            out.cpu().numpy(), pool(rows, b.inverse[SAMPLES:], b.offsets, mode=mode)[0]
        )


def test_features_with_one_id_each_are_one_block():
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 50, 3 * SAMPLES).astype(np.uint64)
    runs = request(np.concatenate([ids[:5], ids]), capacity=200)
    distinct = runs.ids[: int(runs.runs)].cpu().numpy().view(np.uint64)
    device, host, found = filled(SGD(lr=0.1), 24, "float32", distinct, rng)
    slots, inverse = slots_of(runs, found), runs.inverse[5 : 5 + 3 * SAMPLES].cpu().numpy()
    out = torch.full((SAMPLES, 100), -7.0, device=DEVICE)
    block = out[:, : 3 * 24].view(SAMPLES, 3, 24)
    device.gather_positions(runs, slots, block, start=5)
    np.testing.assert_array_equal(block.cpu().numpy(), gather_features(host.read(found)[0], inverse, 3))
    assert (out[:, 3 * 24 :] == -7).all()
    beyond = torch.full((100, 1, 24), -7.0, device=DEVICE)
    device.gather_positions(runs, slots, beyond, start=5 + 2 * SAMPLES)
    assert (beyond[SAMPLES:] == 0).all()
    assert torch.equal(beyond[:SAMPLES, 0], block[:, 2])


def test_gradients_of_features_with_one_id_each():
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 50, 3 * SAMPLES).astype(np.uint64)
    runs = request(ids)
    distinct = runs.ids[: int(runs.runs)].cpu().numpy().view(np.uint64)
    device, host, found = filled(SGD(lr=0.1), 24, "float32", distinct, rng)
    gradients = rng.standard_normal((SAMPLES, 3, 24)).astype(np.float32)
    total = gather_features_backward(gradients, runs.inverse.cpu().numpy(), len(distinct))
    device.step(runs, slots_of(runs, found), on_device(gradients))
    host.step(distinct, found, total, 1.0, np.uint64(0))
    equal(device, host, found)
