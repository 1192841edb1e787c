"""Losses of pairs against loops over all pairs, against plain PyTorch, and over several workers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from contextlib import closing, nullcontext
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

import satrap
from satrap.batch import Batch, EmbeddedBatch, one_id_each
from satrap.data.batch_rows import slice_rows
from satrap.data.catalogue import Catalogue
from satrap.data.encode.hashing import hash_integers
from satrap.dense import WorkerGroup, Workers
from satrap.errors import ConfigError, TrainingError
from satrap.exchange.collective import CollectiveExchange
from satrap.losses import BPR, PairLoss, SampledSoftmax
from satrap.pairs import Pairs
from satrap.store import StoreConfig
from satrap.train import Checkpointing, Observer, Progress
from satrap.train.step import pair_loss
from satrap.train.step.pair_loss import ComparingLoss, comparing
from tests.dense.threads import together
from tests.exchange.collective.parties import Meeting, ThreadRanks
from tests.support.plain_losses import plain_loss
from tests.support.trainers import EXACT, contents, make_trainer

SCHEMA = satrap.Schema(
    [satrap.Label(name="seen", implicit=True)],
    {"user": satrap.Categorical(dim=4), "movie": satrap.Categorical(dim=4)},
)
COUNTS = np.array([5, 1, 2, 9, 3, 1, 1, 4])
"""Rows of the items 1 to 8 of a catalogue."""


def catalogue() -> Catalogue:
    ids = np.arange(1, 9, dtype=np.uint64)
    return Catalogue("movie", Batch(8, {"movie": one_id_each(ids)}), COUNTS)


def at_work(loss: PairLoss, group: WorkerGroup | None = None) -> ComparingLoss:
    items = catalogue() if loss.counts_items else None
    return ComparingLoss(loss, SCHEMA, ("movie",), items, group or WorkerGroup(), 3)


def embedded(labels: Tensor, weights: Tensor | None = None) -> EmbeddedBatch:
    return EmbeddedBatch(
        len(labels), {}, torch.zeros(len(labels), 0), labels=labels[:, None], weights=weights
    )


def by_loop(loss: PairLoss, pairs: Pairs, weights: Tensor) -> Tensor:
    """The mean loss, negative by negative."""
    softmax = isinstance(loss, SampledSoftmax)
    vectors, ids = list(pairs.candidates), list(map(int, pairs.candidate_ids))
    if loss.in_batch:
        vectors, ids = [*pairs.items, *vectors], [*map(int, pairs.item_ids), *ids]
    queries, drawn = (len(pairs.items) if loss.in_batch else 0), len(pairs.candidates)

    def score(query: Tensor, item: Tensor, number: int) -> Tensor:
        value = query @ item
        if not softmax:
            return value
        value = value / loss.temperature  # type: ignore[attr-defined]
        if loss.logq:  # type: ignore[attr-defined]
            counts = COUNTS.astype(float)
            shares, of_draws = counts / counts.sum(), counts**loss.power / (counts**loss.power).sum()
            value = value - math.log(queries * shares[number - 1] + drawn * of_draws[number - 1])
        return value

    losses = []
    for query, item, number in zip(pairs.queries, pairs.items, map(int, pairs.item_ids), strict=True):
        own = score(query, item, number)
        others = [score(query, v, other) for v, other in zip(vectors, ids, strict=True) if other != number]
        others = sorted(others, key=lambda each: each.item(), reverse=True)[: loss.hardest or len(others)]
        if softmax:
            losses.append(torch.logsumexp(torch.stack([own, *others]), 0) - own)
        else:
            terms = [F.softplus(other - own) for other in others] or [own * 0]
            losses.append(torch.stack(terms).mean())
    return (torch.stack(losses) * weights).sum() / weights.sum()


LOSSES = st.one_of(
    st.builds(
        SampledSoftmax,
        negatives=st.integers(1, 3),
        in_batch=st.booleans(),
        temperature=st.sampled_from([1.0, 0.1]),
        logq=st.booleans(),
        power=st.sampled_from([0.0, 0.75]),
        hardest=st.none() | st.integers(1, 4),
    ),
    st.builds(
        BPR, negatives=st.integers(1, 3), in_batch=st.booleans(), hardest=st.none() | st.integers(1, 4)
    ),
)


@settings(max_examples=60, deadline=None)
@given(LOSSES, st.integers(1, 6), st.integers(0, 9), st.integers(0, 1000), st.sampled_from([1, 5, 1 << 20]))
def test_a_loss_and_its_gradients_are_those_of_a_loop(
    loss: PairLoss, samples: int, drawn: int, seed: int, scores: int
) -> None:
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    ids, others = (rng.integers(1, 9, n).astype(np.uint64) for n in (samples, drawn))
    leaves = [torch.randn(n, 4, dtype=torch.float64, requires_grad=True) for n in (samples, samples, drawn)]
    pairs = Pairs(leaves[0], leaves[1], ids, leaves[2], others)
    weights = torch.rand(samples, dtype=torch.float64) + 0.1
    assume(drawn or loss.in_batch)
    results = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pair_loss, "SCORES", scores)
        found = at_work(loss)(pairs, embedded(torch.ones(samples, dtype=torch.float64), weights))
    for value in (found, by_loop(loss, pairs, weights)):
        results.append([value.detach(), *torch.autograd.grad(value, leaves, allow_unused=True)])
    for one, other in zip(*results, strict=True):
        if one is not None and other is not None:
            torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-7)
        else:
            assert all(each is None or not each.any() for each in (one, other))


@pytest.mark.parametrize("loss", [SampledSoftmax(), SampledSoftmax(negatives=2, logq=True), BPR(negatives=2)])
def test_rows_with_label_0_or_without_an_item_do_not_count(loss: PairLoss) -> None:
    queries, items, drawn = torch.randn(5, 3), torch.randn(5, 3), torch.randn(2, 3)
    ids, others = np.array([1, 2, 3, 4, 0], np.uint64), np.array([5, 6], np.uint64)
    labels = torch.tensor([1.0, 0.0, 1.0, 1.0, 1.0])
    found = at_work(loss)(Pairs(queries, items, ids, drawn, others), embedded(labels))
    kept = [0, 2, 3]
    expected = by_loop(loss, Pairs(queries[kept], items[kept], ids[kept], drawn, others), torch.ones(3))
    torch.testing.assert_close(found, expected)


def test_a_batch_without_pairs_has_no_loss() -> None:
    vectors = torch.randn(2, 3, requires_grad=True)
    pairs = Pairs(vectors, vectors, np.zeros(2, np.uint64), vectors[:0], np.zeros(0, np.uint64))
    loss = at_work(SampledSoftmax())(pairs, embedded(torch.ones(2)))
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == 0


def test_memory_of_scores_does_not_grow_with_the_negatives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_loss, "SCORES", 1 << 12)
    kept = []
    for count in (64, 4096):
        saved: list[int] = []
        drawn = torch.randn(count, 4, requires_grad=True)
        queries, ids = torch.randn(64, 4, requires_grad=True), np.arange(64, dtype=np.uint64)
        pairs = Pairs(queries, queries, ids, drawn, np.zeros(count, np.uint64))

        def note(tensor: Tensor, saved: list[int] = saved) -> Tensor:
            saved.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            at_work(SampledSoftmax())(pairs, embedded(torch.ones(64)))
        kept.append(max(saved))
    assert kept[1] <= 4 * 4096 < 64 * 4096


def table(rows: int, seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    return pa.table({"user": rng.integers(1, 20, rows), "movie": rng.zipf(1.5, rows) % 30 + 1})


def sgd(parameters: list[Any]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def towers(schema: satrap.Schema = SCHEMA) -> satrap.models.TwoTower:
    torch.manual_seed(3)
    return satrap.models.TwoTower(schema, item=["movie"], user=["user"], hidden=[5], width=3)


def test_a_batch_draws_the_same_items_again_and_other_batches_others() -> None:
    loss = at_work(SampledSoftmax(negatives=50))
    batches = [next(iter(satrap.data.read(table(9, seed), SCHEMA).batches())) for seed in (1, 1, 2)]
    drawn = [loss.with_candidates(batch, 0).candidates.ids["movie"].values.tolist() for batch in batches]  # type: ignore[union-attr]
    later = loss.with_candidates(batches[0], 1).candidates.ids["movie"].values.tolist()  # type: ignore[union-attr]
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]
    assert drawn[0] != later


LISTS = SCHEMA.replace({"shown": satrap.Categorical(dim=4, table="movie", multi=True)})


def with_lists(rows: pa.Table, seed: int = 0) -> pa.Table:
    """Add lists of up to four items, some of which are missing, and so are some lists."""
    rng = np.random.default_rng(seed)
    lists = [
        None if length > 4 else [None if item == 7 else int(item) for item in rng.integers(1, 40, length)]
        for length in rng.integers(0, 6, len(rows))
    ]
    return rows.append_column("shown", pa.array(lists, pa.list_(pa.int64())))


def hashed(item: int) -> int:
    return int(hash_integers(np.array([item]), SCHEMA.salt, np.array([], np.uint64))[0])


def test_items_that_rows_without_a_pair_list_do_not_count() -> None:
    schema = satrap.Schema([satrap.Label(name="seen")], LISTS.features)
    rows = {"user": [1, 2, 3], "movie": [4, 5, None], "shown": [[6, 5], [7], [8]], "seen": [1, 0, 1]}
    [batch] = satrap.data.read(rows, schema, batch_size=3).batches()
    loss = ComparingLoss(SampledSoftmax(listed="shown"), schema, ("movie",), None, WorkerGroup(), 3)
    candidates = loss.with_candidates(batch, 0).candidates
    assert candidates is not None
    assert candidates.ids["movie"].values.tolist() == [hashed(6), hashed(5)]


def test_listed_items_of_several_features_have_the_features_of_their_training_rows() -> None:
    """And come after the drawn ones; an item without a training row has unknown features."""
    schema = LISTS.replace({"kind": satrap.Categorical(dim=4, multi=True), "price": satrap.Numeric()})
    rows = {
        "user": [1, 2, 3],
        "movie": [4, 5, 6],
        "kind": [[1, 2], [], [3]],
        "price": [1.5, 2.5, 3.5],
        "shown": [[6, 9, 4], [], [6]],
    }
    data = satrap.data.read(rows, schema, batch_size=3)
    model = satrap.models.TwoTower(schema, item=["movie", "kind", "price"], user=["user"])
    loss = comparing(SampledSoftmax(listed="shown", negatives=2), model, schema, data, WorkerGroup(), 3, {})
    [batch] = data.batches()
    candidates = loss.with_candidates(batch, 0).candidates
    assert candidates is not None
    assert candidates.size == 5
    assert candidates.numeric is not None
    listed = slice_rows(candidates, 2, 5)
    assert listed.ids["movie"].values.tolist() == [hashed(item) for item in (6, 4, 6)]
    assert listed.ids["kind"].values.tolist() == [hashed(kind) for kind in (3, 1, 2, 3)]
    assert listed.ids["kind"].offsets is not None
    assert listed.ids["kind"].offsets.tolist() == [0, 1, 3, 4]
    assert candidates.numeric[2:, 0].tolist() == [3.5, 1.5, 3.5]


def test_lists_are_not_corrected_for() -> None:
    with pytest.raises(ConfigError, match="logq cannot be combined with listed"):
        make_trainer(
            model=towers(LISTS), schema=LISTS, loss=SampledSoftmax(listed="shown", logq=True), mode="sync"
        )


@pytest.mark.parametrize(
    ("listed", "user", "what"),
    [
        ("shwn", ["user"], "listed names 'shwn', which is not a categorical feature"),
        ("user", ["shown"], "listed names feature 'user', which does not have the ids of items"),
        ("shown", None, "listed names 'shown', which is also a feature of the user"),
    ],
)
def test_lists_of_something_else_are_refused(listed: str, user: Any, what: str) -> None:
    model = satrap.models.TwoTower(LISTS, item=["movie"], user=user)
    with pytest.raises(ConfigError, match=what):
        make_trainer(model=model, schema=LISTS, loss=SampledSoftmax(listed=listed), mode="sync")


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("loss", [SampledSoftmax(), SampledSoftmax(negatives=6, logq=True), BPR(negatives=4)])
def test_workers_give_what_one_process_of_the_joined_batch_gives(world: int, loss: PairLoss) -> None:
    data = satrap.data.read(table(330), SCHEMA, batch_size=16)
    meeting, models = Meeting(world), [towers() for _ in range(world)]

    def one(workers: Workers) -> Any:
        rank = workers.rank

        def exchange(tables: Any) -> CollectiveExchange:
            store = StoreConfig(initial_scale=0.5)
            return CollectiveExchange(ThreadRanks(meeting, rank), tables, store=store, wire=EXACT)

        place = {"exchange": exchange, "workers": workers, "dense_optimizer": sgd, "mode": "sync"}
        trainer = make_trainer(model=models[rank], schema=SCHEMA, loss=loss, **place)
        trainer.fit(data.with_options(worker=rank, workers=world))
        rows = contents(trainer)
        workers.meet("done")
        trainer.close()
        return rows

    parts = together(world, one)
    at = comparing(loss, towers(), SCHEMA, data, WorkerGroup(), StoreConfig().seed, {})
    shares = [data.with_options(worker=rank, workers=world).batches() for rank in range(world)]
    steps = itertools.zip_longest(*([at.with_candidates(batch, 0) for batch in share] for share in shares))
    reference = one_process(at, loss, [joined_batch([b for b in step if b is not None]) for step in steps])
    for model, (name, value) in itertools.product(models, reference.model.state_dict().items()):
        torch.testing.assert_close(model.state_dict()[name], value, atol=2e-6, rtol=1e-5)
    for name, (ids, rows, _) in contents(reference).items():
        every = {int(i): row for part in parts for i, row in zip(*part[name][:2], strict=True)}
        np.testing.assert_allclose([every[int(number)] for number in ids], rows, atol=2e-6)
    reference.close()


def joined_batch(parts: list[Batch]) -> Batch:
    """The samples of several batches in one, with the candidates of all."""

    def joined(pick: Callable[[Batch], Batch | None], feature: str) -> Any:
        return one_id_each(np.concatenate([pick(part).ids[feature].values for part in parts]))  # type: ignore[union-attr]

    drawn = joined(lambda part: part.candidates, "movie")
    size = sum(part.size for part in parts)
    return Batch(
        size,
        {name: joined(lambda part: part, name) for name in ("user", "movie")},
        labels=np.ones((size, 1), np.float32),
        candidates=Batch(len(drawn), {"movie": drawn}),
    )


def one_process(at: ComparingLoss, loss: PairLoss, batches: list[Batch]) -> Any:
    """Train on batches that have candidates already."""

    class Given:
        def batches(self, epoch: int = 0, position: Any = None) -> Any:
            return iter(batches)

    trainer = make_trainer(model=towers(), schema=SCHEMA, loss=loss, mode="sync", dense_optimizer=sgd)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ComparingLoss, "with_candidates", lambda self, batch, epoch: batch)
        patched.setattr("satrap.train.trainer.comparing", lambda *_: at)
        trainer.fit(Given())
    return trainer


@pytest.mark.parametrize(
    "loss",
    [
        SampledSoftmax(negatives=8, logq=True, temperature=0.5),
        BPR(negatives=8),
        SampledSoftmax(listed="shown"),
        BPR(in_batch=False, listed="shown"),
    ],
)
def test_two_hundred_steps_equal_plain_pytorch(loss: PairLoss) -> None:
    seen: list[Batch] = []
    draw = ComparingLoss.with_candidates

    def noting(self: ComparingLoss, batch: Batch, epoch: int) -> Batch:
        seen.append(draw(self, batch, epoch))
        return seen[-1]

    schema, rows_read = SCHEMA, table(800)
    if loss.listed:
        schema, rows_read = LISTS, with_lists(rows_read)
    model = towers(schema)
    trainer = make_trainer(
        model=model,
        schema=schema,
        loss=loss,
        mode="sync",
        dense_optimizer=sgd,
        embedding_optimizer=satrap.optim.SGD(lr=0.05),
    )
    first = {name: t.clone() for name, t in model.state_dict().items()}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ComparingLoss, "with_candidates", noting)
        trainer.fit(satrap.data.read(rows_read, schema, batch_size=8), epochs=2)
    assert len(seen) == 200
    if loss.listed:
        for number, batch in enumerate(seen):
            assert batch.candidates is not None
            rows_of = rows_read.slice(number % 100 * 8, 8)["shown"].to_pylist()
            by_hand = [hashed(item) for row in rows_of for item in row or [] if item is not None]
            assert batch.candidates.ids["movie"].values.tolist() == by_hand
    rows = contents(trainer)
    plain_weights, plain_rows = plainly(loss, seen, first)
    for name, value in plain_weights.items():
        torch.testing.assert_close(model.state_dict()[name], value, atol=1e-5, rtol=1e-4)
    for name, (ids, values, _) in rows.items():
        for number, row in zip(ids, values, strict=True):
            np.testing.assert_allclose(plain_rows[name][int(number)].numpy(), row, atol=1e-5)
    trainer.close()


def plainly(loss: PairLoss, batches: list[Batch], first: dict[str, Tensor]) -> Any:
    """The same training with tables and optimizers of PyTorch, and full matrices of scores."""
    fresh = make_trainer(
        model=towers(),
        schema=SCHEMA,
        loss=SampledSoftmax(),
        mode="sync",
        embedding_optimizer=satrap.optim.SGD(lr=0.05),
    )
    numbers: dict[str, list[int]] = {"user": [], "movie": []}
    for batch in batches:
        assert batch.candidates is not None
        numbers["user"] += map(int, batch.ids["user"].values)
        numbers["movie"] += [*map(int, batch.ids["movie"].values)]
        numbers["movie"] += [*map(int, batch.candidates.ids["movie"].values)]
    order = {name: {n: i for i, n in enumerate(sorted(set(ids)))} for name, ids in numbers.items()}
    tables = {}
    for name, places in order.items():
        ids = np.array(list(places), np.uint64)
        rows = np.zeros((len(ids), 4), np.float32)
        shard = fresh.exchange.shard  # type: ignore[attr-defined]
        rows[:] = shard.lookup(name, ids)
        tables[name] = torch.nn.Parameter(torch.from_numpy(rows))
    fresh.close()
    model = towers()
    model.load_state_dict(first)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.SGD(tables.values(), lr=0.05)]
    items = Catalogue.of(satrap.data.read(table(800), SCHEMA), ["movie"])
    for batch in batches:
        assert batch.candidates is not None
        parts = {
            "user": batch.ids["user"],
            "movie": batch.ids["movie"],
            "drawn": batch.candidates.ids["movie"],
        }
        vectors = {}
        for part, ids in parts.items():
            name = "user" if part == "user" else "movie"
            places = torch.tensor([order[name][int(n)] for n in ids.values])
            vectors[part] = model.towers["user" if part == "user" else "item"](tables[name][places])
        own, drawn = ((vectors[part], parts[part].values) for part in ("movie", "drawn"))
        total = plain_loss(loss, vectors["user"], own, drawn, items)
        for optimizer in optimizers:
            optimizer.zero_grad()
        total.backward()  # type: ignore[no-untyped-call]
        for optimizer in optimizers:
            optimizer.step()
    weights = {name: value.detach() for name, value in model.state_dict().items()}
    return weights, {
        name: {number: tables[name].detach()[i] for number, i in places.items()}
        for name, places in order.items()
    }


def test_a_loss_of_pairs_needs_a_model_of_vectors() -> None:
    with pytest.raises(ConfigError, match="needs a model that compares vectors, and FM has none"):
        made(satrap.models.create("fm", SCHEMA), SampledSoftmax())


def made(model: Any, loss: PairLoss) -> Any:
    return closing(make_trainer(model=model, schema=SCHEMA, loss=loss, mode="sync"))


def test_an_implicit_label_needs_a_loss() -> None:
    with pytest.raises(ConfigError, match="an implicit label needs loss"):
        make_trainer(model=towers(), schema=SCHEMA, mode="sync")


def test_a_loss_of_pairs_needs_a_binary_label() -> None:
    schema = satrap.Schema(
        [satrap.Label(name="stars", kind="regression", mean=0.0, std=1.0)], SCHEMA.features
    )
    model = satrap.models.TwoTower(schema, item=["movie"])
    with pytest.raises(ConfigError, match="needs one label, binary or implicit"):
        make_trainer(model=model, schema=schema, loss=SampledSoftmax(), mode="sync")


def test_counting_items_needs_rows_that_can_be_read_twice() -> None:
    class Once:
        def batches(self, epoch: int = 0, position: Any = None) -> Any:
            return satrap.data.read(table(40), SCHEMA).batches()

    expected = pytest.raises(ConfigError, match="rows that can be read twice")
    with made(towers(), SampledSoftmax(negatives=2)) as trainer, expected:
        trainer.fit(Once())
    with made(towers(), SampledSoftmax()) as trainer:
        assert trainer.fit(Once()).steps == 1


def test_a_model_that_returns_logits_is_an_error() -> None:
    with pytest.raises(TrainingError, match="returned a value of type Tensor"):
        at_work(SampledSoftmax())(torch.zeros(3, 1), embedded(torch.ones(3)))


class Cut(Observer):
    """Ends a training with an error after some steps."""

    def step(self, progress: Progress) -> None:
        if progress.step == 11:
            raise InterruptedError


def test_hybrid_training_resumes_with_the_same_draws(tmp_path: Any) -> None:
    data = satrap.data.read(table(400), SCHEMA, batch_size=16).with_options(shuffle=True, seed=2)
    loss, ended = SampledSoftmax(negatives=5, logq=True), []
    for cuts in ((False,), (True, False)):
        saved = Checkpointing(str(tmp_path / str(len(cuts))), every_steps=3)
        for number, cut in enumerate(cuts):
            trainer = make_trainer(model=towers(), schema=SCHEMA, loss=loss, mode="hybrid", staleness=3)
            arguments: dict[str, Any] = {"checkpoint": saved, "resume": number > 0, "epochs": 2}
            with pytest.raises(InterruptedError) if cut else nullcontext():
                trainer.fit(data, **arguments, observers=[Cut()] if cut else [])
            found = contents(trainer)
            trainer.close()
        ended.append(found)
    for name, columns in ended[0].items():
        for one, other in itertools.zip_longest(columns, ended[1][name]):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("counts", [(4, 1), (3, 0)])
def test_the_loss_of_workers_is_the_mean_over_all_their_pairs(counts: tuple[int, int]) -> None:
    """A worker whose histories are longer has more pairs per sample, and another one may have none."""
    torch.manual_seed(0)
    total, loss = sum(counts), SampledSoftmax(hardest=9)
    queries, items, ids = (
        torch.randn(total, 4),
        torch.randn(total, 4),
        np.arange(1, total + 1, dtype=np.uint64),
    )
    nothing = torch.zeros(0, 4), np.zeros(0, np.uint64)

    def one(workers: Workers) -> float:
        start = sum(counts[: workers.rank])
        part = slice(start, start + counts[workers.rank])
        at = at_work(loss, workers.data)
        if not counts[workers.rank]:
            return at.absent(torch.device("cpu")).item()
        samples = np.zeros(counts[workers.rank], np.int64)
        pairs = Pairs(queries[part], items[part], ids[part], *nothing, samples)
        return at(pairs, embedded(torch.ones(1))).item()

    expected = at_work(loss)(Pairs(queries, items, ids, *nothing), embedded(torch.ones(total)))
    assert sum(together(2, one)) / 2 == pytest.approx(float(expected), rel=1e-5)
