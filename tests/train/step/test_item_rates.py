"""Estimates of frequencies: near the true ones, whatever shares a cell, and continued from arrays."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import satrap
from satrap.batch import EmbeddedBatch
from satrap.dense import Workers
from satrap.losses import SampledSoftmax
from satrap.pairs import Pairs
from satrap.train import Checkpointing, Observer, Progress
from satrap.train.step import item_rates
from satrap.train.step.item_rates import RATE, Arrays, ItemRates
from satrap.train.step.pair_loss import ComparingLoss
from tests.dense.threads import together
from tests.support.trainers import contents, make_trainer

SCHEMA = satrap.Schema(
    [satrap.Label(name="seen", implicit=True)],
    {"user": satrap.Categorical(dim=4), "movie": satrap.Categorical(dim=4)},
)
SAMPLES = EmbeddedBatch(6, {}, torch.zeros(6, 0), labels=torch.ones(6, 1))


class Cut(Observer):
    """Ends a training with an error after some steps."""

    def step(self, progress: Progress) -> None:
        if progress.step == 11:
            raise InterruptedError


def test_estimates_are_near_the_expected_counts_of_frequent_and_rare_items() -> None:
    rng, rates = np.random.default_rng(0), ItemRates({})
    shares = np.array([0.5, 0.3, 0.15, 0.04, 0.01])
    for _ in range(3000):
        rates.count(rng.choice(5, 8, p=shares).astype(np.uint64))
    found = rates.expected(np.arange(5, dtype=np.uint64))
    np.testing.assert_allclose(found, 8 * shares, rtol=0.3)
    assert rates.expected(np.array([7], np.uint64)).tolist() == [0]


def test_of_several_cells_the_smallest_estimate_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(item_rates, "CELLS", 8)
    crowded = ItemRates({})
    monkeypatch.setattr(item_rates, "HASHES", 1)
    single = ItemRates({})
    ids = np.arange(1, 9, dtype=np.uint64)
    for number in range(200):
        for rates, hashes in ((crowded, 2), (single, 1)):
            monkeypatch.setattr(item_rates, "HASHES", hashes)
            rates.count(ids[: 1 + number % 8])
    alone = single.expected(ids)
    monkeypatch.setattr(item_rates, "HASHES", 2)
    assert (crowded.expected(ids) <= alone).all()


def test_a_state_goes_on_from_its_arrays() -> None:
    rng, arrays = np.random.default_rng(1), Arrays()
    whole, cut = ItemRates({}), ItemRates(arrays)
    for number in range(20):
        ids = rng.integers(0, 50, 9).astype(np.uint64)
        if number == 11:
            cut = ItemRates({name: array.copy() for name, array in arrays.items()})
        for rates in (whole, cut):
            rates.count(ids)
    every = np.arange(50, dtype=np.uint64)
    np.testing.assert_array_equal(whole.expected(every), cut.expected(every))


def plain_rates(batches: list[list[int]]) -> dict[int, float]:
    """Expected number of times in a batch, item by item: running averages of gaps and of numbers."""
    cells: dict[int, tuple[int, float, float]] = {}
    for batch, ids in enumerate(batches, 1):
        for item in set(ids):
            last, gap, number = cells.get(item, (0, float(batch), float(ids.count(item))))
            gap += RATE * (batch - last - gap)
            number += RATE * (ids.count(item) - number)
            cells[item] = batch, gap, number
    return {item: number / gap for item, (_, gap, number) in cells.items()}


@pytest.mark.parametrize("world", [1, 2])
def test_frequencies_of_a_stream_are_estimated_from_the_batches_of_all_workers(world: int) -> None:
    """The second worker has no third batch."""
    rng = np.random.default_rng(5)
    batches = [[rng.zipf(1.6, 6) % 9 + 1 for _ in range(world if step < 2 else 1)] for step in range(3)]
    vectors = [[torch.randn(6, 3) for _ in parts] for parts in batches]

    def one(workers: Workers) -> list[float]:
        rank, losses = workers.rank, []
        loss = ComparingLoss(
            SampledSoftmax(logq=True), SCHEMA, ("movie",), None, workers.data, 3, ItemRates({})
        )
        for parts, of_parts in zip(batches, vectors, strict=True):
            if rank < len(parts):
                ids, each = parts[rank].astype(np.uint64), of_parts[rank]
                none = each[:0]
                pairs = Pairs(each, each + 1, ids, none, np.zeros(0, np.uint64))
                losses.append(loss(pairs, SAMPLES).item())
            else:
                losses.append(loss.absent(torch.device("cpu")).item())
        return losses

    found = np.mean(together(world, one), axis=0) if world > 1 else one(Workers())
    for number, (parts, of_parts) in enumerate(zip(batches, vectors, strict=True)):
        ids = [int(item) for part in parts for item in part]
        rates = plain_rates([[int(i) for part in each for i in part] for each in batches[: number + 1]])
        queries = torch.cat(of_parts)
        scores = queries @ (queries + 1).T - torch.tensor([math.log(rates[item]) for item in ids])
        same = torch.tensor(ids)[:, None] == torch.tensor(ids)[None]
        same.fill_diagonal_(False)
        expected = F.cross_entropy(scores.masked_fill(same, -math.inf), torch.arange(len(ids)))
        assert found[number] == pytest.approx(expected.item(), rel=1e-5)


def test_a_stream_resumes_with_the_estimates_of_its_frequencies(tmp_path: Any) -> None:
    rng = np.random.default_rng(0)
    rows = {"user": rng.integers(1, 20, 400), "movie": rng.zipf(1.5, 400) % 30 + 1}

    class Stream:
        def batches(self, epoch: int = 0, position: Any = None) -> Any:
            for number, batch in enumerate(satrap.data.read(rows, SCHEMA, batch_size=16).batches()):
                if position is None or number >= position["next"]:
                    batch.position = {"next": number + 1}
                    yield batch

    ended = []
    for cuts in ((False,), (True, False)):
        saved = Checkpointing(str(tmp_path / str(len(cuts))), every_steps=3)
        for number, cut in enumerate(cuts):
            torch.manual_seed(3)
            model = satrap.models.TwoTower(SCHEMA, item=["movie"], hidden=[5], width=3)
            trainer = make_trainer(
                model=model, schema=SCHEMA, loss=SampledSoftmax(logq=True), mode="hybrid", staleness=2
            )
            arguments: dict[str, Any] = {"checkpoint": saved, "resume": number > 0}
            with pytest.raises(InterruptedError) if cut else nullcontext():
                trainer.fit(Stream(), **arguments, observers=[Cut()] if cut else [])
            found = contents(trainer)
            trainer.close()
        ended.append(found)
    for name, columns in ended[0].items():
        for one_column, other in zip(columns, ended[1][name], strict=True):
            np.testing.assert_array_equal(one_column, other)
