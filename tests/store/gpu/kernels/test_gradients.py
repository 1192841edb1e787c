"""Gradients of an id are summed in the order of `runs.sums`, whatever the tiles are."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from satrap.optim import SGD, Adam
from satrap.store.gpu import slab
from tests.store.gpu.runs import DEVICE, on_device, request, sums
from tests.store.gpu.slabs import equal, filled, slots_of, steps

pytestmark = pytest.mark.triton


@pytest.mark.parametrize("name", ["sgd", "adam"])
@pytest.mark.parametrize(
    "lengths",
    [
        [1, 63, 64, 65, 127, 128, 129, 255, 256, 257],
        [64, 64, 65, 64],
        [63, 130, 1, 128],
        [1500],
        [1, 2200, 2],
    ],
    ids=str,
)
def test_runs_around_every_edge(name, lengths):
    equal(*steps(name, 32, "float32", lengths))


@pytest.mark.parametrize("floats", [1 << 6, 1 << 11])
def test_no_tile_changes_a_sum(floats, monkeypatch):
    monkeypatch.setattr(slab, "_INTERPRETED_FLOATS", floats)
    equal(*steps("clip and decay", 16, "bfloat16", [1, 2, 65, 3, 130]))


def test_gradients_of_sixteen_bits():
    rng = np.random.default_rng(0)
    runs = request(rng.integers(0, 9, 60).astype(np.uint64))
    distinct = runs.ids[: int(runs.runs)].cpu().numpy().view(np.uint64)
    device, host, slots = filled(SGD(lr=0.1), 8, "float32", distinct, rng)
    gradients = torch.from_numpy(rng.standard_normal((60, 8))).to(torch.bfloat16)
    device.step(runs, slots_of(runs, slots), gradients.to(DEVICE))
    host.step(distinct, slots, sums(runs, gradients.float().numpy()), 1.0, np.uint64(0))
    equal(device, host, slots)


def test_no_ids_change_nothing():
    rng = np.random.default_rng(0)
    ids = np.arange(4, dtype=np.uint64)
    device, host, slots = filled(Adam(lr=0.1), 8, "float32", ids, rng)
    runs = request(ids[:0], capacity=200)
    runs.starts[0] = 100  # what an earlier request left
    device.step(runs, slots_of(runs, slots[:0]), torch.full((200, 8), torch.nan, device=DEVICE))
    equal(device, host, slots)


def test_a_graph_may_keep_the_memory_of_pieces():
    rng = np.random.default_rng(0)
    ids = np.zeros(300, np.uint64)
    device, host, slots = filled(SGD(lr=0.1), 8, "float32", ids[:1], rng)
    for capacity in (300, 400, 300):
        runs = request(ids, capacity=capacity)
        gradients = rng.standard_normal((300, 8)).astype(np.float32)
        device.step(runs, slots_of(runs, slots), on_device(gradients))
        host.step(ids[:1], slots, sums(runs, gradients), 1.0, np.uint64(0))
        equal(device, host, slots)
    assert sorted(device._pieces) == [300, 400]
