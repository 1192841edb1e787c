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
from satrap.store import StoreConfig, TableSettings
from satrap.train import Checkpointing, Trainer
from satrap.train.pretrained import check_rows
from tests.train.plain import VOCABULARY, Batches, PlainModel, Tower, lazy, make_batches, make_schema
from tests.train.test_workers import adam, alone, contents, make_trainer

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


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize(("mode", "staleness"), [("sync", 0), ("hybrid", 3)])
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


def test_a_resumed_run_needs_no_file_and_is_that_of_one_run_to_the_bit(tmp_path: Path) -> None:
    path, batches = exported(tmp_path), make_batches(12)
    whole = alone(Batches(batches), mode="hybrid", staleness=2, tables=settings(path))
    first = make_trainer(mode="hybrid", staleness=2, tables=settings(path))
    plan = Checkpointing(str(tmp_path / "snapshots"), every_steps=5, delta_every_steps=1)
    first.fit(Batches(batches), steps=8, checkpoint=plan)
    first.close()
    path.unlink()
    second = make_trainer(mode="hybrid", staleness=2, tables=settings(path))
    second.fit(Batches(batches), checkpoint=plan, resume=True)
    rows = contents(second)
    assert item_rows(rows) == FILE
    for table, columns in whole.rows.items():
        for own, other in zip(rows[table], columns, strict=True):
            np.testing.assert_array_equal(own, other)
    second.close()


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
        (KNOWN, np.ones((25, 4), np.float32), "the rows have 4 weights, table 'item' has 8"),
        (KNOWN * 0, VECTORS, "an id occurs twice"),
        (KNOWN, np.where(VECTORS[3, 2] == VECTORS, np.float32(np.nan), VECTORS), "not a number"),
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
    with pytest.raises(ConfigError, match="a frozen table has no optimizer"):
        TableSettings(optimizer=satrap.optim.SGD(lr=1.0), frozen=True)
    with pytest.raises(ConfigError, match="a frozen table has no initial_scale"):
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
