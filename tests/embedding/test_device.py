"""What a store on a device is asked for, and the network's input from its responses."""

from __future__ import annotations

import numpy as np
import torch

import satrap
from satrap.batch import Batch, Jagged, JaggedRows
from satrap.embedding.device import DeviceEmbeddings, DevicePlan
from satrap.embedding.module import Embeddings
from satrap.embedding.plan import EmbeddingPlan
from satrap.exchange import TableGroup
from satrap.exchange.lookup import BatchRequest
from satrap.store import pool

SCHEMA = satrap.Schema(
    ["y"],
    {
        "one": satrap.Categorical(dim=4),
        "free": satrap.Categorical(dim=4, multi=True, pooling="none"),
        "many": satrap.Categorical(dim=4, multi=True, pooling="mean", table="one"),
        "other": satrap.Categorical(dim=2),
    },
)
GROUPS = [TableGroup(0, ("one", "free"), 4), TableGroup(1, ("other",), 2)]


def batch_of(size: int) -> Batch:
    rng = np.random.default_rng(0)

    def ids(count: int) -> np.ndarray:
        return rng.integers(0, 9, count).astype(np.uint64)

    return Batch(
        size,
        {
            "one": Jagged(ids(size)),
            "free": Jagged(ids(4), np.array([0, 3, *[4] * (size - 1)]), np.array([1, 2, 0.5, 1], np.float32)),
            "many": Jagged(ids(5), np.array([0, *[5] * size])),
            "other": Jagged(ids(size)),
        },
    )


def row(request: BatchRequest, table: int, key: int) -> np.ndarray:
    dim = GROUPS[request.group].dim
    return np.random.default_rng([request.group, table, key]).standard_normal(dim).astype(np.float32)


def rows_at(request: BatchRequest) -> np.ndarray:
    tables = np.searchsorted(request.splits, np.arange(len(request.ids)), side="right") - 1
    return np.stack([row(request, t, k) for t, k in zip(tables.tolist(), request.ids.tolist(), strict=True)])


def answer(request: BatchRequest) -> np.ndarray:
    """What the store on a device answers."""
    every, vectors, unpooled = rows_at(request), [], []
    for f in request.features:
        if f.mode == "none":
            unpooled.append(every[f.start : f.stop])
        else:
            offsets = np.arange(request.size + 1) if f.offsets is None else f.offsets
            at = np.arange(f.start, f.stop, dtype=np.int32)
            vectors.append(pool(every, at, offsets, mode=f.mode, weights=f.weights)[0])
    block = np.stack(vectors, axis=1).reshape(-1, every.shape[1])
    return np.concatenate([block, *unpooled])


def test_responses_make_the_input_that_rows_of_distinct_ids_make() -> None:
    batch = batch_of(6)
    device, plan = DevicePlan(SCHEMA, GROUPS), EmbeddingPlan(SCHEMA, GROUPS)
    asked, plain = device.ticket(batch), plan.ticket(batch)
    assert [r.rows for r in asked.requests] == [2 * 6 + 4, 6]
    assert device.distinct(asked) == asked.requests
    responses = [answer(request) for request in asked.requests]
    assert [len(r) for r in responses] == [r.rows for r in asked.requests]
    embeddings = DeviceEmbeddings(device, torch.device("cpu"))
    mine = embeddings.embed(asked, embeddings.rows([torch.from_numpy(r) for r in responses]))
    rows = [rows_at(request) for request in plain.requests]
    theirs = Embeddings(plan, torch.device("cpu"))
    wanted = theirs.embed(plain, theirs.rows(rows))
    for name in SCHEMA.categorical:
        one, two = mine.embeddings[name], wanted.embeddings[name]
        if isinstance(one, JaggedRows):
            assert isinstance(two, JaggedRows)
            torch.testing.assert_close(one.values, two.values, rtol=0, atol=0)
        else:
            torch.testing.assert_close(one, two, rtol=0, atol=0)


def test_gradients_are_tensors_where_responses_are() -> None:
    device = DevicePlan(SCHEMA, GROUPS)
    embeddings = DeviceEmbeddings(device, torch.device("cpu"))
    asked = device.ticket(batch_of(3))
    leaves = embeddings.rows([torch.from_numpy(answer(request)) for request in asked.requests])
    embedded = embeddings.embed(asked, leaves)
    embedded.embeddings["many"].sum().backward()
    one, two = embeddings.gradients(leaves)
    assert isinstance(one, torch.Tensor)
    assert one[: 2 * 3].view(3, 2, 4)[:, 1].eq(1).all()
    assert one.sum() == 3 * 4
    assert not two.any()
