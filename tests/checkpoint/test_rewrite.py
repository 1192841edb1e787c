"""Checkpoints changed in place: what was forgotten is nowhere any more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from satrap.checkpoint import Checkpoint, Series
from satrap.checkpoint.chain import open_chain, read_deleted
from satrap.checkpoint.rewrite import forget
from satrap.errors import CheckpointError, ConfigError
from satrap.exchange import Exchange
from satrap.exchange.states import COUNTS
from satrap.launch.checkpoint_rows import forget_everywhere
from satrap.store import Eviction
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
        cut = exchange.durability.cut(delta=series.followable(step))
        ids = next(chunk.ids for table, chunk in exchange.durability.snapshot() if table == "a")[:50].copy()
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
        exchange.durability.read(series.place(4), follow=True, exact=True)
        rows = contents(exchange)
        kept = ~np.isin(held["a"][0], np.array(sorted(victims), np.uint64))
        assert kept.sum() < len(kept)
        for found, expected in zip(rows["a"], held["a"], strict=True):
            np.testing.assert_array_equal(found, expected[kept])
        for name in held.keys() - {"a"}:
            for found, expected in zip(rows[name], held[name], strict=True):
                np.testing.assert_array_equal(found, expected)
        use(exchange, 9)
        cut = exchange.durability.cut(delta=True)
        assert cut.deleted is not None
        series.write(9, Checkpoint({}, {}, {}, (), rows=cut.write, deleted=cut.deleted))
        whole = local()
        whole.durability.read(series.place(9))
        for name, columns in contents(exchange).items():
            for found, expected in zip(contents(whole)[name], columns, strict=True):
                np.testing.assert_array_equal(found, expected)
        whole.close()


def test_a_delta_alone_cannot_forget(tmp_path: Path) -> None:
    series = Series(str(tmp_path), keep=9)
    with opened(0) as exchange:
        saved(exchange, series, 2)
    with pytest.raises(ConfigError, match="this is a delta: the row would stay"):
        forget_everywhere(series.place(2), "a", "1", hashed=True)
    with pytest.raises(CheckpointError, match="there is no table 'z'"):
        forget(series.place(2), "z", 1)
