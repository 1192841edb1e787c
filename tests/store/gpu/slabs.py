"""Pairs of slabs, one on the device and one on the CPU."""

from __future__ import annotations

import numpy as np

from satrap.optim import FTRL, SGD, Adagrad, Adam, AdamW, RowWiseAdagrad
from satrap.schema import Table
from satrap.store.gpu.slab import DeviceSlab
from satrap.store.memory.slab import Slab
from satrap.store.memory.thread_pool import ThreadPool
from satrap.store.row_spec import RowSpec
from tests.store.gpu.runs import DEVICE, on_device, request, sums

FORMATS = ("float32", "bfloat16", "float16")
EDGES = np.array([0, 1, 2**63 - 1, 2**63, 2**64 - 1], np.uint64)
"""Ids of which a kernel may lose a bit."""


OPTIMIZERS = {
    "sgd": SGD(lr=0.1, weight_decay=0.01),
    "bound": SGD(lr=0.5, bound=0.1),
    "momentum": SGD(lr=0.1, momentum=0.9),
    "nesterov": SGD(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "adagrad": Adagrad(lr=0.1, initial_accumulator=0.5, weight_decay=0.01),
    "rowwise": RowWiseAdagrad(lr=0.1, weight_decay=0.01),
    "adam": Adam(lr=0.1, weight_decay=0.01, bound=0.5),
    "adamw": AdamW(lr=0.1, betas=(0.8, 0.99)),
    "ftrl": FTRL(lr=0.1, l1=0.2, l2=0.1),
    "clip": SGD(lr=0.1, clip=3.0),
    "clip and decay": Adam(lr=0.1, clip=2.0, weight_decay=0.1),
}


def both(optimizer, dim, dtype="float32", slots=4000, tables=1):
    """Return a slab on the device and one on the CPU."""
    kind = RowSpec(
        [Table(f"t{t}", dim=dim, dtype=dtype, initial_scale=0.1 + t) for t in range(tables)], optimizer, 7
    )
    return DeviceSlab(kind, slots, DEVICE), Slab(kind, slots, ThreadPool(1))


def filled(optimizer, dim, dtype, ids, rng):
    """Return both slabs with the same first rows of distinct ids, and their slots."""
    device, host = both(optimizer, dim, dtype)
    slots = rng.permutation(4000)[: len(ids)].astype(np.int32)
    host.initialize(ids, np.array([0, len(ids)]), np.arange(len(ids)), slots)
    weights, state = host.read(slots)
    device.write(*(on_device(x) for x in (ids.view(np.int64), slots, weights, state)))
    return device, host, slots


def equal(device, host, slots):
    """Check that rows are equal to the bit."""
    for ours, theirs in zip(device.read(on_device(slots)), host.read(slots), strict=True):
        np.testing.assert_array_equal(ours.cpu().numpy().view(np.uint32), theirs.view(np.uint32))


def slots_of(runs, slots):
    """Return int32[capacity] on the device: the slots, then what no kernel may read."""
    out = np.full(len(runs.ids), 2**31 - 1, np.int32)
    out[: len(slots)] = slots
    return on_device(out)


def steps(name, dim, dtype, lengths, *, change=None):
    """Take two steps on both slabs, on runs of these lengths; return them and the slots."""
    rng = np.random.default_rng(dim)
    every = np.concatenate([EDGES, np.arange(10, 10 + len(lengths), dtype=np.uint64)])
    ids = rng.permutation(np.repeat(every[: len(lengths)], lengths))
    runs = request(ids, capacity=len(ids) + 100)
    distinct = runs.ids[: len(lengths)].cpu().numpy().view(np.uint64)
    device, host, slots = filled(OPTIMIZERS[name], dim, dtype, distinct, rng)
    some = np.where(np.arange(len(slots)) == 3, -1, slots).astype(np.int32)  # one id without a row
    for step in range(2):
        gradients = rng.standard_normal((len(ids), dim)).astype(np.float32)
        if change is not None:
            change(gradients)
        scale, noise = 1 / (1 + step), np.uint64(2**64 - 5 - step)
        device.numbers.set(scale, noise)
        device.step(runs, slots_of(runs, some), on_device(gradients))
        host.step(distinct, some, sums(runs, gradients), scale, noise)
    return device, host, slots
