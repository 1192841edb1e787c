"""Checkpoints changed in place: what was forgotten is nowhere any more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from satrap.checkpoint import Checkpoint, Series, read_checkpoint, write_checkpoint
from satrap.checkpoint.chain import open_chain, read_deleted
from satrap.checkpoint.files.storage import Storage
from satrap.checkpoint.manifest import read_manifest
from satrap.checkpoint.rewrite import forget, rewrite, rewrite_rows
from satrap.errors import CheckpointError, ConfigError
from satrap.exchange import Exchange
from satrap.exchange.states import COUNTS
from satrap.export.row_files import forget_everywhere
from satrap.store import Eviction, RowChunk
from tests import faults
from tests.checkpoint.states import make_checkpoint, make_chunk
from tests.contract.parties import connect, contents, local, request, threads

SMALL = {"memory": 1_040_000, "eviction": Eviction()}


@contextmanager
def opened(shards: int) -> Iterator[Exchange]:
    """An exchange that evicts: one store, or shards."""
    with threads(shards) as servers:
        exchange = connect([s.address for s in servers], **SMALL) if shards else local(**SMALL)
        yield exchange
        exchange.close()


def wide(number: int) -> int:
    """An id whose bytes are nowhere by chance."""
    return (number + 1) * 0x9E3779B97F4A7C15 % 2**64


def use(exchange: Exchange, seed: int) -> None:
    rng = np.random.default_rng(seed)
    both = [wide(i) for i in rng.choice(90_000, 1800, replace=False).tolist()]
    exchange.lookup([request(0, both, both[:9]), request(1, both[:9])], create=True).result()


def saved(exchange: Exchange, series: Series, steps: int) -> None:
    """A full snapshot and deltas, with what a worker needs to go on."""
    for step in range(1, steps + 1):
        use(exchange, step)
        cut = exchange.rows.cut(delta=series.followable(step))
        ids = next(chunk.ids for table, chunk in exchange.rows.cut(still=True) if table == "a")[:50].copy()
        extra = {"ahead.0.0.ids": torch.from_numpy(ids), "ahead.0.0.rows": torch.ones(50, 4)}
        settings = {COUNTS: dict(cut.counts)}
        series.write(
            step, Checkpoint(settings, {}, {}, (), extra, [dict(extra)], rows=cut.write, deleted=cut.deleted)
        )


def files_with(root: Path, id_: int) -> set[str]:
    """Names of the files that hold the 8 bytes of an id, in either order."""
    needles = id_.to_bytes(8, "little"), id_.to_bytes(8, "big")
    return {f.name for f in root.rglob("*") if f.is_file() and any(n in f.read_bytes() for n in needles)}


@pytest.mark.parametrize("shards", [0, 2])
def test_no_byte_of_a_forgotten_id_is_left(shards: int, tmp_path: Path) -> None:
    """An id in flight, one that lives, one that a delta deletes; then going on is as if it had never been."""
    series = Series(str(tmp_path), keep=9)
    with opened(shards) as exchange:
        saved(exchange, series, 4)
        held = contents(exchange)
    _, *deltas = open_chain(series.place(4)).members
    before = {int(i) for t, c in open_chain(series.place(1)).chunks() if t == "a" for i in c.ids}
    gone = {int(i) for member in deltas for i in read_deleted(*member)["a"]}
    alive = {int(i) for i in held["a"][0]}
    in_flight = int(series.read(4)[1].extra["ahead.0.0.ids"].numpy()[0])
    victims = {in_flight, min(gone & before - alive), max(alive - gone - {in_flight})}
    where = [files_with(tmp_path, id_) for id_ in victims]
    for name in ("table-000", "deleted", "worker-000", "worker-001", "store."):
        assert any(file.startswith(name) for names in where for file in names)
    for id_ in victims:
        done = forget_everywhere(str(tmp_path), "a", str(id_), hashed=True)
        assert done.keys() == {f"step-{step:08d}" for step in range(1, 5)}
        assert any(done.values())
    for table, chunk in (pair for step in series.steps() for pair in series.read(step)[1].chunks):
        assert table != "a" or not {int(i) for i in chunk.ids} & victims
    others = {int(i) for name in held.keys() - {"a"} for i in held[name][0]}
    for id_ in victims - others:
        assert files_with(tmp_path, id_) == set()
    for step in series.steps():
        series.verify(step)
    check_going_on(shards, series, held, victims)


def check_going_on(shards: int, series: Series, held: dict, victims: set[int]) -> None:
    with opened(shards) as exchange:
        exchange.rows.read(series.place(4), follow=True, exact=True)
        rows = contents(exchange)
        kept = ~np.isin(held["a"][0], np.array(sorted(victims), np.uint64))
        assert kept.sum() < len(kept)
        for found, expected in zip(rows["a"], held["a"], strict=True):
            np.testing.assert_array_equal(found, expected[kept])
        for name in held.keys() - {"a"}:
            for found, expected in zip(rows[name], held[name], strict=True):
                np.testing.assert_array_equal(found, expected)
        use(exchange, 9)
        cut = exchange.rows.cut(delta=True)
        assert cut.deleted is not None
        series.write(9, Checkpoint({}, {}, {}, (), rows=cut.write, deleted=cut.deleted))
        whole = local()
        whole.rows.read(series.place(9))
        for name, columns in contents(exchange).items():
            for found, expected in zip(contents(whole)[name], columns, strict=True):
                np.testing.assert_array_equal(found, expected)
        whole.close()


def test_a_delta_alone_cannot_forget(tmp_path: Path) -> None:
    series = Series(str(tmp_path), keep=9)
    with opened(0) as exchange:
        saved(exchange, series, 2)
    with pytest.raises(ConfigError, match="this is a delta: the row would remain"):
        forget_everywhere(series.place(2), "a", "1", hashed=True)
    with pytest.raises(CheckpointError, match="has no table 'z'"):
        forget(series.place(2), "z", 1)


def doubled(chunks: Iterator[RowChunk]) -> Iterator[RowChunk]:
    for chunk in chunks:
        yield replace(chunk, weights=2 * chunk.weights)


def test_rows_of_a_table_are_changed_and_all_else_is_as_it_was(tmp_path: Path) -> None:
    write_checkpoint(str(tmp_path), make_checkpoint())
    old = read_manifest(Storage(str(tmp_path)))
    new = rewrite(str(tmp_path), "user", doubled, edit=lambda name, data: data)
    assert (new.id, new.settings, new.rows(), list(new.files)) == (
        old.id,
        old.settings,
        {"strange/name ü": 1, "user": 3},
        sorted(old.files),
    )
    assert new == read_manifest(Storage(str(tmp_path)))
    assert old.data != new.data
    assert [p.name for p in tmp_path.glob("data-*")] == [new.data]
    expected, found = make_checkpoint(), read_checkpoint(str(tmp_path))
    expected.chunks = [
        (t, replace(c, weights=2 * c.weights) if t == "user" else c) for t, c in expected.chunks
    ]
    found.chunks = sorted(found.chunks, key=lambda pair: pair[0] != "user")
    assert [(t, c.ids.tolist(), c.weights.tolist()) for t, c in found.chunks] == [
        (t, c.ids.tolist(), c.weights.tolist()) for t, c in expected.chunks
    ]


def test_a_new_table_has_a_file_of_its_own_and_one_without_rows_has_none(tmp_path: Path) -> None:
    write_checkpoint(str(tmp_path), make_checkpoint())
    before = {name: e.table for name, e in read_manifest(Storage(str(tmp_path))).files.items() if e.table}
    made = rewrite(str(tmp_path), "new", lambda _: [make_chunk("new", [5], 2, 1)])
    after = {name: entry.table for name, entry in made.files.items() if entry.table}
    assert before == {"table-000.arrow": "user", "table-001.arrow": "strange/name ü"}
    assert after == before | {"table-002.arrow": "new"}
    gone = rewrite(str(tmp_path), "user", lambda _: [])
    assert {name: entry.table for name, entry in gone.files.items() if entry.table} == {
        "table-001.arrow": "strange/name ü",
        "table-002.arrow": "new",
    }
    again = rewrite(str(tmp_path), "user", lambda _: [make_chunk("user", [5], 4, 1)])
    assert again.files["table-000.arrow"].table == "user"


def test_other_rows_do_not_take_the_place_of_rows(tmp_path: Path) -> None:
    write_checkpoint(str(tmp_path), make_checkpoint())
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(CheckpointError, match="other numbers of rows") as caught:
        rewrite_rows(str(tmp_path), lambda *_: {})
    assert caught.value.where == str(tmp_path)
    full = faults.armed("disk.create", faults.fail(lambda: OSError(28, "No space left on device")))
    with full, pytest.raises(CheckpointError, match=r"could not be written: .*No space left") as caught:
        rewrite(str(tmp_path), "user", doubled)
    assert caught.value.where == str(tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
