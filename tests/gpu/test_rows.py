"""Rows in the memory of a real GPU: many inserts, two equal runs, and training beside rows in RAM."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import satrap
from satrap.store import Shard, StoreConfig
from satrap.store.arrays import FeatureIds
from satrap.store.gpu.device import interpreted
from tests.train.plain import Batches, grouped, make_batches, make_schema

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not (torch.cuda.is_available() or interpreted()), reason="needs a CUDA device"),
]
MANY = 500 if interpreted() else 1 << 20


def shard_of(rows: int, **options: Any) -> Shard:
    tables = [satrap.Table(name, dim=16, optimizer=satrap.optim.SGD(lr=0.5)) for name in ("a", "b")]
    return Shard(tables, device="cuda", memory=rows * (64 + 24) + (1 << 20), **options)


def test_a_million_inserts_with_duplicates() -> None:
    """Each key is there exactly once, and its row has had the step of its own gradient."""
    rng = np.random.default_rng(0)
    shard, size = shard_of(4 * MANY), MANY // 2
    seen: list[set[int]] = [set(), set()]
    for _ in range(3):
        ids = np.concatenate([rng.zipf(1.2, size), rng.integers(0, 2**63, size)]).astype(np.uint64)
        splits = np.array([0, size, 2 * size], np.int64)
        features = [FeatureIds(0, size, None, None, "sum"), FeatureIds(size, 2 * size, None, None, "sum")]
        prepared = shard.prepare_batch(0, ids, splits)
        batch = shard.look_up_batch(0, prepared, size, features, create=True)
        before = batch.rows
        shard.update_batch(0, batch, torch.ones_like(before))
        for t, name in enumerate(("a", "b")):
            own, counts = np.unique(ids[splits[t] : splits[t + 1]], return_counts=True)
            seen[t] |= set(own.tolist())
            at = np.searchsorted(own, ids[splits[t] : splits[t + 1]][:100])
            rows, found = shard.peek(name, own[at])
            assert found.all()
            was = before.view(size, 2, 16)[:100, t].cpu().numpy()
            moved = was - np.asarray(rows.cpu())
            np.testing.assert_allclose(moved, np.broadcast_to(0.5 * counts[at, None], moved.shape), rtol=1e-5)
    statistics = shard.statistics().tables
    assert [statistics["a"].rows, statistics["b"].rows] == [len(keys) for keys in seen]
    exported = np.concatenate([chunk.ids for chunk in shard.export("b")])
    assert len(exported) == len(seen[1])
    assert set(exported.tolist()) == seen[1]
    shard.close()


def trained(**options: Any) -> tuple[list[bytes], list[np.ndarray]]:
    torch.manual_seed(0)
    schema = make_schema()
    device = "cpu" if interpreted() else options.pop("device", "cuda")
    trainer = satrap.Trainer(
        satrap.models.DNN(schema, hidden=[16]),
        schema,
        **grouped(embedding_optimizer=satrap.optim.Adagrad(lr=0.05), mode="sync", staleness=0, **options),
        device=device,
    )
    trainer.fit(Batches(make_batches(4 if interpreted() else 50)))
    rows = [chunk.weights for _, chunk in trainer.exchange.rows.cut(still=True)]
    weights = [p.detach().cpu().numpy() for p in trainer.model.parameters()]
    trainer.close()
    return [w.tobytes() for w in [*weights, *rows]], rows


def test_two_runs_are_equal_to_the_bit() -> None:
    options = {"rows_on": "cuda", "memory": 1 << 22}
    assert trained(**options)[0] == trained(**options)[0]


def test_rows_are_those_of_training_in_ram() -> None:
    there, here = trained(rows_on="cuda", memory=1 << 22)[1], trained()[1]
    assert [len(rows) for rows in there] == [len(rows) for rows in here]
    for mine, wanted in zip(there, here, strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=2e-5, atol=2e-5)


def test_too_much_memory_is_refused_with_sizes() -> None:
    with pytest.raises(satrap.errors.ConfigError, match="free"):
        Shard([satrap.Table("a", dim=8, optimizer=satrap.optim.SGD(lr=1.0))], device="cuda", memory=1 << 50)


def test_a_step_without_room_is_refused_whole() -> None:
    shard = Shard(
        [satrap.Table("a", dim=16, optimizer=satrap.optim.SGD(lr=1.0))], device="cuda", memory=(1 << 19)
    )
    ids, config = np.arange(20_000, dtype=np.uint64), StoreConfig()
    assert config.device == "cpu"
    prepared = shard.prepare_batch(0, ids, np.array([0, len(ids)], np.int64))
    features = [FeatureIds(0, len(ids), None, None, "sum")]
    batch = shard.look_up_batch(0, prepared, len(ids), features, create=True)
    before = batch.rows
    with pytest.raises(satrap.errors.StoreError, match="no room"):
        shard.update_batch(0, batch, torch.ones_like(before))
    after, found = shard.peek("a", ids)
    assert 0 < found.sum() < len(ids)
    assert torch.equal(torch.as_tensor(after), before)
    shard.close()
