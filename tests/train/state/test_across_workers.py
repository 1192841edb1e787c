"""What several workers found is what one would have found; what one tells another arrives whole."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from satrap.checkpoint import Checkpoint
from satrap.dense import DenseState, Workers
from satrap.metrics import Metrics
from satrap.schema import Label
from satrap.train.state.across_workers import merged, pack_worker, shared, unpack_worker
from tests.dense.threads import together


def seen(rows: slice) -> Metrics:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, (300, 2)).astype(np.float32)
    scores = rng.random((300, 2)).astype(np.float32)
    groups = rng.integers(0, 9, 300).astype(np.uint64)
    metrics = Metrics([Label(name="a"), Label(name="b")], grouped=True)
    metrics.update(labels[rows], scores[rows], groups=groups[rows])
    return metrics


@pytest.mark.parametrize("world", [1, 3])
def test_metrics_of_shares_are_those_of_all_samples(world: int) -> None:
    def work(workers: Workers) -> dict[str, float]:
        return merged(seen(slice(workers.rank, None, workers.size)), workers)

    found = together(world, work)
    expected = seen(slice(None)).compute()
    assert expected["a/auc"] != seen(slice(0, 150)).compute()["a/auc"]
    for each in found:
        assert each == found[0]
        assert each == pytest.approx(expected, rel=1e-12)


def test_processes_with_the_same_samples_count_them_once() -> None:
    def work(workers: Workers) -> dict[str, float]:
        return merged(seen(slice(workers.data.rank, None, workers.data.size)), workers)

    expected = seen(slice(None)).compute()
    for each in together(6, work, copies=3):
        assert each == pytest.approx(expected, rel=1e-12)


def test_plain_data_and_tensors_arrive_whole() -> None:
    tensors = {"empty": torch.zeros(0, 3), "bytes": torch.arange(5, dtype=torch.uint8)}
    plain = {"place": {"cursor": [1, 2.5, None]}, "é": "ü" * 300}
    text, found = unpack_worker(pack_worker(plain, tensors))
    assert text == plain
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)
    assert unpack_worker(pack_worker({}, {})) == ({}, {})


def checkpoint() -> Checkpoint:
    return Checkpoint(
        {"steps": 7, "peers": [{}, {}]},
        {"weight": torch.arange(6.0).view(2, 3)},
        {"state": {0: {"step": torch.tensor(3.0)}}, "param_groups": [{"lr": 0.5, "params": [0]}]},
        ("chunk",),
        extra={"own": torch.tensor([0])},
        others=[{"own": torch.tensor([1])}, {"own": torch.tensor([2])}],
    )


def test_all_workers_get_the_checkpoint_of_rank_0_and_only_rank_0_its_rows() -> None:
    def work(workers: Workers) -> Checkpoint:
        return shared(checkpoint() if workers.rank == 0 else None, workers)

    for rank, found in enumerate(together(3, work)):
        assert found.settings == checkpoint().settings
        assert torch.equal(found.model["weight"], checkpoint().model["weight"])
        assert found.optimizer["param_groups"] == [{"lr": 0.5, "params": [0]}]
        assert found.optimizer["state"][0]["step"] == 3
        assert found.chunks == (("chunk",) if rank == 0 else ())
        assert [int(extra["own"]) for extra in (found.extra, *found.others)] == [0, 1, 2]


def test_who_has_the_network_already_sends_none() -> None:
    def work(workers: Workers) -> Checkpoint:
        own = DenseState({"own": torch.tensor(workers.rank)}, {"of": workers.rank})
        return shared(checkpoint() if workers.rank == 0 else None, workers, own)

    for rank, found in enumerate(together(3, work)):
        assert (found.settings, found.chunks) == (checkpoint().settings, ("chunk",) if rank == 0 else ())
        assert found.model == {"own": torch.tensor(rank)}
        assert found.optimizer == {"of": rank}
        assert [int(extra["own"]) for extra in (found.extra, *found.others)] == [0, 1, 2]


def test_one_worker_keeps_its_own() -> None:
    own = checkpoint()
    assert shared(own, Workers()) is own
    assert [int(extra["own"]) for extra in (own.extra, *own.others)] == [0, 1, 2]
