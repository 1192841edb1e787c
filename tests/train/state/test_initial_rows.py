"""Tables that start with rows of files, frozen or not, against plain PyTorch, over every exchange."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

import satrap
from satrap.errors import ConfigError, DataError
from satrap.exchange.collective import CollectiveExchange, Placement
from satrap.store import StoreConfig, TableSettings
from satrap.train import Checkpointing, Trainer
from satrap.train.state.initial_rows import check_rows
from tests.contract.parties import connect, request, threads
from tests.embedding.workers import tier
from tests.exchange.collective.parties import Meeting, ThreadRanks, together
from tests.support.interruptions import KillAt, KilledError
from tests.support.trainers import (
    EXACT,
    Answer,
    adam,
    alone,
    assert_same,
    connecting,
    contents,
    distributed,
    make_trainer,
)
from tests.train.plain import VOCABULARY, Batches, PlainModel, Tower, lazy, make_batches, make_schema
from tests.train.ranks import fitted, rows_of, trained
from tests.train.ranks import workers as joined_workers

KNOWN = np.arange(0, VOCABULARY, 2, dtype=np.uint64)
"""Items that the file has; the others are unknown to it."""
VECTORS = np.random.default_rng(5).normal(size=(len(KNOWN), 8)).astype(np.float32)


def exported(folder: Path, ids: np.ndarray = KNOWN, weights: np.ndarray = VECTORS, **columns: Any) -> Path:
    """Write rows as `satrap checkpoint export` does: ids are not hashed again, as those of the batches."""
    path = folder / "item.parquet"
    lists = pa.FixedSizeListArray.from_arrays(pa.array(weights.reshape(-1)), weights.shape[1])
    table = pa.table({"id": pa.array(ids), "weights": lists, **columns})
    pq.write_table(table.replace_schema_metadata({"table": "item"}), path)
    return path


def settings(path: Path | None, *, frozen: bool = True, **others: Any) -> dict[str, TableSettings]:
    return {"item": TableSettings(rows=path, frozen=frozen, **others)}


def item_rows(rows: dict[str, tuple[np.ndarray, ...]]) -> dict[int, bytes]:
    ids, weights, state = rows["item"]
    assert state.shape == (len(ids), 0)  # no optimizer state
    return {int(i): w.tobytes() for i, w in zip(ids, weights, strict=True)}


FILE = {int(i): w.tobytes() for i, w in zip(KNOWN, VECTORS, strict=True)}


@pytest.mark.parametrize(("mode", "staleness", "frozen"), [("sync", 0, True), ("hybrid", 3, False)])
def test_equals_plain_pytorch_with_pretrained_embeddings(
    mode: str, staleness: int, frozen: bool, tmp_path: Path
) -> None:
    trainer = make_trainer(
        embedding_optimizer=satrap.optim.Adagrad(lr=0.05),
        mode=mode,
        staleness=staleness,
        tables=settings(exported(tmp_path), frozen=frozen),
    )
    ids, batches = np.arange(VOCABULARY, dtype=np.uint64), make_batches(25)
    first = {name: trainer.exchange.shard.peek(name, ids)[0] for name in ("user", "item", "tags")}
    if frozen:
        assert not first["item"].any()  # ids without a row
    first["item"][KNOWN.astype(int)] = VECTORS
    tower = copy.deepcopy(trainer.model)
    plain = PlainModel(tower, first, staleness)
    steps = {name: lazy(lambda p: torch.optim.Adagrad(p, lr=0.05)) for name in first}
    if frozen:
        plain.bags["item"] = nn.EmbeddingBag.from_pretrained(torch.tensor(first["item"]), freeze=True)
        steps["item"] = lambda *_: None
    plain.train(batches, steps, adam(list(tower.parameters())))

    trainer.fit(Batches(batches))

    for name, bag in plain.bags.items():
        own = trainer.exchange.shard.peek(name, ids)[0]
        np.testing.assert_allclose(own, bag.weight.detach().numpy(), atol=1e-5, rtol=0)
    for own, other in zip(trainer.model.parameters(), tower.parameters(), strict=True):
        torch.testing.assert_close(own, other, atol=1e-5, rtol=0)
    counts = trainer.statistics().tables["item"]
    if frozen:
        assert item_rows(contents(trainer)) == FILE
        assert (counts.rows, counts.created, counts.dropped) == (len(KNOWN), len(KNOWN), 0)
        assert counts.unadmitted == counts.misses > 0
    else:
        assert counts.rows > len(KNOWN)
    trainer.close()


def test_a_second_fit_and_a_loaded_trainer_keep_their_rows(tmp_path: Path) -> None:
    """A table that merely starts with rows of a file goes on from where it is."""
    whole = alone(Batches(make_batches(20)), mode="sync", tables=settings(exported(tmp_path), frozen=False))
    trainer = make_trainer(mode="sync", tables=settings(exported(tmp_path), frozen=False))
    trainer.fit(Batches(make_batches(20)[:10]))
    trainer.fit(Batches(make_batches(20)[10:]))
    np.testing.assert_array_equal(contents(trainer)["item"][1], whole.rows["item"][1])
    trainer.save(str(tmp_path / "model"))
    (tmp_path / "item.parquet").unlink()
    loaded = Trainer.load(str(tmp_path / "model"), Tower(), dense_optimizer=adam)
    loaded.fit(Batches(make_batches(1)))
    trainer.fit(Batches(make_batches(1)))
    assert len(contents(loaded)["item"][0]) == len(contents(trainer)["item"][0])
    loaded.close()
    trainer.close()


def test_frozen_rows_are_kept_in_the_number_format_of_the_table(tmp_path: Path) -> None:
    vectors = torch.tensor(VECTORS).bfloat16().float().numpy()
    found = alone(
        Batches(make_batches(5)), tables=settings(exported(tmp_path, weights=vectors), dtype="bfloat16")
    )
    assert item_rows(found.rows) == {int(i): w.tobytes() for i, w in zip(KNOWN, vectors, strict=True)}


@pytest.mark.parametrize("shards", [0, 3])
def test_a_resumed_run_needs_no_file_and_is_that_of_one_run_to_the_bit(shards: int, tmp_path: Path) -> None:
    """In one process, and continued over shard servers."""
    path, batches = exported(tmp_path), make_batches(12)
    whole = alone(Batches(batches), mode="hybrid", staleness=2, tables=settings(path))
    first = make_trainer(mode="hybrid", staleness=2, tables=settings(path))
    plan = Checkpointing(str(tmp_path / "snapshots"), every_steps=4, delta_every_steps=2)
    with pytest.raises(KilledError):
        first.fit(Batches(batches), checkpoint=plan, observers=[KillAt(8)])
    first.close()
    path.unlink()
    with threads(shards) as servers:
        connect = connecting([server.address for server in servers]) if shards else None
        second = make_trainer(mode="hybrid", staleness=2, tables=settings(path), exchange=connect)
        result = second.fit(Batches(batches), checkpoint=plan, resume=True)
        resumed = Answer(second, result, contents(second))
        second.close()
    assert item_rows(resumed.rows) == FILE
    assert_same(whole, resumed)


def test_frozen_rows_are_in_no_delta(tmp_path: Path) -> None:
    trainer = make_trainer(tables=settings(exported(tmp_path)))
    trainer.fit(Batches(make_batches(2)))
    changes = trainer.exchange.shard.changes
    full = {chunk.table for chunk in changes.take().chunks}
    trainer.fit(Batches(make_batches(3)))
    delta = {chunk.table for chunk in changes.take().chunks}
    assert (full, delta) == ({"user", "item", "tags"}, {"user", "tags"})
    trainer.close()


def test_new_rows_of_a_file_start_with_its_state_or_the_optimizers(tmp_path: Path) -> None:
    adagrad = satrap.optim.Adagrad(lr=0.1, initial_accumulator=0.5)
    given = np.random.default_rng(1).random(VECTORS.shape).astype(np.float32)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(given.reshape(-1)), 8)
    for columns, expected in (({}, np.full_like(given, 0.5)), ({"state": lists}, given)):
        own = settings(exported(tmp_path, **columns), frozen=False, optimizer=adagrad)
        trainer = make_trainer(tables=own)
        trainer.fit(Batches(make_batches(1, size=1)[:1]))  # one item changes
        ids, weights, state = contents(trainer)["item"]
        at = {int(i): n for n, i in enumerate(ids)}
        order = [at[int(i)] for i in KNOWN]
        assert np.count_nonzero((state[order] != expected).any(axis=1)) <= 1
        assert np.count_nonzero((weights[order] != VECTORS).any(axis=1)) <= 1
        trainer.close()


def tables_of(schema: satrap.Schema, store: StoreConfig) -> list[satrap.Table]:
    from satrap.embedding import tables_of as found

    return found(schema, satrap.optim.SGD(lr=1.0), None, store)


@pytest.mark.parametrize(
    ("ids", "weights", "what"),
    [
        (KNOWN, np.ones((25, 4), np.float32), "the rows have 4 weights, but table 'item' has 8"),
        (KNOWN * 0, VECTORS, "an id occurs twice"),
        (KNOWN, np.where(VECTORS[3, 2] == VECTORS, np.float32(np.nan), VECTORS), "NaN or infinite"),
        (None, VECTORS, "the file does not exist"),
    ],
)
def test_files_that_do_not_fit_are_refused_before_a_step(
    ids: np.ndarray | None, weights: np.ndarray, what: str, tmp_path: Path
) -> None:
    path = tmp_path / "nothing.parquet" if ids is None else exported(tmp_path, ids, weights)
    store = StoreConfig(tables=settings(path))
    with pytest.raises(DataError, match=what) as caught:
        check_rows(make_schema(), tables_of(make_schema(), store), store)
    assert str(path) in caught.value.where
    assert len(str(caught.value).splitlines()) <= 4
    trainer = make_trainer(tables=store.tables)
    with pytest.raises(DataError, match=what):
        trainer.fit(Batches(make_batches(1)))
    assert trainer.run.steps == 0
    trainer.close()


def test_settings_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="optimizer cannot be combined with frozen: true"):
        TableSettings(optimizer=satrap.optim.SGD(lr=1.0), frozen=True)
    with pytest.raises(ConfigError, match="initial_scale cannot be combined with frozen: true"):
        TableSettings(initial_scale=0.0, frozen=True)
    store = StoreConfig(tables=settings(None))
    with pytest.raises(ConfigError, match="'item' is frozen, and has no rows"):
        check_rows(make_schema(), tables_of(make_schema(), store), store)


@pytest.mark.parametrize("key", [{"buckets": 100}, {"boundaries": (1.0, 2.0)}, {"cross": ("a", "b")}])
def test_ids_that_are_made_of_values_do_not_go_with_values_in_a_file(
    key: dict[str, Any], tmp_path: Path
) -> None:
    np.savez(tmp_path / "item.npz", id=KNOWN, weights=VECTORS)
    schema = make_schema(item=satrap.Categorical(dim=8, **key))
    store = StoreConfig(tables=settings(tmp_path / "item.npz"))
    with pytest.raises(ConfigError, match=f"feature 'item' has {next(iter(key))}"):
        check_rows(schema, tables_of(schema, store), store)
    store = StoreConfig(tables=settings(exported(tmp_path)))  # ids as they are in the table
    assert check_rows(schema, tables_of(schema, store), store) == {"item": len(KNOWN)}


DATA = {0: Batches(make_batches(7, size=16, seed=0)), 1: Batches(make_batches(5, size=16, seed=1))}
SYNC: dict[str, Any] = {"mode": "sync"}


@pytest.mark.cluster
@pytest.mark.parametrize(("shards", "lookahead"), [(1, 3), (3, 0)])
def test_over_shard_servers_all_is_as_in_one_process_to_the_bit(
    shards: int, lookahead: int, tmp_path: Path
) -> None:
    tables = settings(exported(tmp_path))
    arguments = {**SYNC, "tables": tables, "lookahead": lookahead}
    here = alone(DATA[0], **arguments)
    there = distributed(1, shards, lambda _: DATA[0], **arguments)[0]
    assert item_rows(here.rows) == item_rows(there.rows) == FILE
    assert_same(here, there)


@pytest.mark.cluster
def test_workers_of_shard_servers_load_the_rows_once(tmp_path: Path) -> None:
    tables = settings(exported(tmp_path))
    found = distributed(2, 2, DATA.__getitem__, **SYNC, tables=tables)[0]
    assert item_rows(found.rows) == FILE
    among = trained(2, DATA.__getitem__, **SYNC, tables=tables)
    assert_same(found, among)


@pytest.mark.cluster
@pytest.mark.parametrize(("placement", "pools"), [("table_wise", True), ("replicated", False)])
def test_among_workers_that_hold_the_rows_placement_changes_nothing(
    placement: str, pools: bool, tmp_path: Path
) -> None:
    arguments = {**SYNC, "tables": settings(exported(tmp_path))}
    expected = trained(2, DATA.__getitem__, **arguments)
    own = Placement(tables={"item": placement, "tags": "table_wise"})
    found = trained(2, DATA.__getitem__, placement=own, pools=pools, **arguments)
    assert item_rows(found.rows) == FILE
    assert_same(expected, found)


@pytest.mark.cluster
def test_replicas_beside_shard_servers_may_be_frozen(tmp_path: Path) -> None:
    arguments = {"mode": "sync", "tables": settings(exported(tmp_path))}
    expected = trained(2, DATA.__getitem__, **arguments)
    found = joined_workers(
        2, lambda trainer, rank: fitted(trainer, DATA[rank]), replicated=["item"], **arguments
    )
    answers, parts = zip(*found, strict=True)
    answers[0].rows = rows_of(list(parts))
    assert item_rows(answers[0].rows) == FILE
    assert_same(expected, answers[0])


@pytest.mark.cluster
def test_embedding_workers_pool_frozen_rows(tmp_path: Path) -> None:
    answers = []
    for through in (False, True):
        with tier.servers(2, 1) as (shards, middle):
            torch.manual_seed(1)
            one = tier.trainer(
                shards,
                middle if through else (),
                schema=make_schema(),
                model=Tower(),
                tables=settings(exported(tmp_path)),
                embedding_optimizer=satrap.optim.Adagrad(lr=0.05),
            )
            answers.append(Answer(one, one.fit(DATA[0]), contents(one)))
            one.close()
    assert item_rows(answers[1].rows) == FILE
    assert_same(*answers, tolerance=1e-6)


def test_gradients_of_frozen_rows_are_not_sent() -> None:
    tables = [
        satrap.Table("a", dim=16, optimizer=satrap.optim.SGD(lr=1.0)),
        satrap.Table("f", dim=16, frozen=True),
    ]
    meeting = Meeting(2)

    def sent(exchange: Any) -> list[int]:
        found = []
        for group in (0, 1):
            lookup = exchange.lookup([request(group, range(1000))], create=True)
            lookup.result()
            before = exchange.telemetry.traffic().sent
            exchange.apply(lookup, [np.ones((1000, 16), np.float32)], lr_scale=1.0)
            exchange.flush()
            found.append(exchange.telemetry.traffic().sent - before)
        exchange.close()
        return found

    def among(rank: int) -> list[int]:
        return sent(CollectiveExchange(ThreadRanks(meeting, rank), tables, wire=EXACT))

    with threads(2) as servers:
        alike = [sent(connect([server.address for server in servers], tables=tables))]
    alike += together([lambda: among(0), lambda: among(1)])
    for learning, frozen in alike:
        assert learning > 400 * 16 * 4  # of two ranks, one half is its own
        assert frozen < 2000
