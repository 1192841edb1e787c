"""Ranks that hold the rows together train, evaluate, save and resume as workers with shard servers do."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import satrap
from satrap.batch import Jagged
from satrap.checkpoint import read_checkpoint
from satrap.checkpoint.store_part import StorePart
from satrap.embedding import pooled
from satrap.errors import ConfigError
from satrap.exchange.collective import Placement
from satrap.exchange.servers import Wire
from satrap.train import Checkpointing, Trainer
from tests.exchange.collective.parties import EXACT
from tests.support.interruptions import KillAt, KilledError
from tests.support.trainers import (
    Answer,
    Rows,
    alone,
    assert_same,
    contents,
    distributed,
    joined,
)
from tests.train.plain import Batches, Tower, make_batches, make_schema
from tests.train.ranks import PARTS, parts, ranks, rows_of, trained

MIXED = Placement(tables={"user": "replicated", "tags": "table_wise"})


@pytest.mark.parametrize("world", [1, 2, 4])
def test_sync_is_that_of_shard_servers_to_the_bit_and_that_of_one_process(world: int) -> None:
    mine = trained(world, parts, mode="sync", epochs=2, validation=lambda r: parts(3 - r))
    servers = distributed(world, 2, parts, mode="sync", epochs=2, validation=lambda r: parts(3 - r))[0]
    assert_same(mine, servers)
    assert mine.result.metrics == servers.result.metrics
    assert (mine.result.steps, mine.result.samples) == (servers.result.steps, servers.result.samples)
    steps = [[part[i] for part in PARTS[:world] if i < len(part)] for i in range(7)]
    assert_same(mine, alone(Batches([joined(step) for step in steps]), mode="sync", epochs=2), 1e-6)


SCHEMAS = {
    "mean": {},
    "sqrtn": {"tags": satrap.Categorical(dim=8, multi=True, pooling="sqrtn")},
    "shared": {"tags": satrap.Categorical(dim=8, multi=True, pooling="sum", table="item")},
    "apart": {"tags": satrap.Categorical(dim=8, multi=True), "user": satrap.Categorical(dim=8, table="tags")},
}


def weighted(rank: int) -> Batches:
    """Batches whose tags have weights, on some ranks."""
    rng, made = np.random.default_rng(rank), []
    for batch in PARTS[rank]:
        tags = batch.ids["tags"]
        weights = rng.random(len(tags.values)).astype(np.float32) if rank != 1 else None
        made.append(replace(batch, ids={**batch.ids, "tags": Jagged(tags.values, tags.offsets, weights)}))
    return Batches(made)


@pytest.mark.cluster
@pytest.mark.parametrize("always", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("others", ["table_wise", pytest.param("row_wise", marks=pytest.mark.slow)])
def test_rows_that_their_owner_pools_give_the_same_to_the_bit(
    others: str, schema: str, always: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[bool] = []

    def sends(rows: int, *_: float) -> bool:
        sent.append(always or rows % 2 == 0)
        return sent[-1]

    monkeypatch.setattr(pooled, "sends_less", sends)
    arguments: dict[str, Any] = {"mode": "sync", "schema": make_schema(**SCHEMAS[schema])}
    held = Placement(others, {"item" if schema == "shared" else "tags": "table_wise"})
    world = 4 if always else 3
    mine = trained(
        world, weighted, validation=lambda r: parts(3 - r), placement=held, pools=True, **arguments
    )
    rows = trained(world, weighted, validation=lambda r: parts(3 - r), **arguments)
    assert_same(mine, rows)
    assert mine.result.metrics == rows.result.metrics
    assert any(sent)


PLACED = [
    ("row_wise", EXACT),
    ("row_wise", Wire()),
    ("row_wise", Wire("int8", "int8")),
    ("replicated", EXACT),
]


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("world", "lookahead", "placement", "wire"),
    [
        pytest.param(
            world,
            lookahead,
            *placed,
            marks=pytest.mark.slow if world == 4 or (world == 1 and i in (1, 3)) else (),
        )
        for world, lookahead in ((1, 2), (2, 1), (4, 3))
        for i, placed in enumerate(PLACED)
    ],
)
def test_lookahead_changes_nothing(world: int, lookahead: int, placement: str, wire: Wire) -> None:
    arguments: dict[str, Any] = {"mode": "sync", "epochs": 2, "placement": Placement(placement), "wire": wire}
    arguments["validation"] = lambda rank: parts(3 - rank)
    mine, sync = trained(world, parts, lookahead=lookahead, **arguments), trained(world, parts, **arguments)
    assert_same(mine, sync)
    assert mine.result.metrics == sync.result.metrics
    assert mine.result.staleness == {0: 14}


@pytest.mark.parametrize("arguments", [{}, {"lookahead": 2}, {"clip_norm": 0.5}], ids=str)
def test_a_step_that_one_rank_refuses_is_refused_by_all(arguments: dict[str, Any]) -> None:
    def data(rank: int, *, bad: bool) -> Batches:
        batches = make_batches(8, size=16, seed=rank)
        if bad and rank == 1:
            batches[3].numeric[2] = np.nan  # type: ignore[index]
        return Batches(batches if bad else batches[:3] + batches[4:])

    mine = trained(2, lambda r: data(r, bad=True), mode="sync", **arguments)
    without = trained(2, lambda r: data(r, bad=False), mode="sync", **arguments)
    assert (mine.result.refused, without.result.refused) == (1, 0)
    for table, columns in without.rows.items():  # of the refused batch, new rows have their initial values
        kept = np.isin(mine.rows[table][0], columns[0])
        for one, other in zip(mine.rows[table], columns, strict=True):
            np.testing.assert_array_equal(one[kept], other)
    assert mine.digest == without.digest


def test_pooling_by_the_owner_is_refused_where_rows_must_be_seen() -> None:
    wrong: dict[str, dict[str, Any]] = {
        "hybrid": {"mode": "hybrid"},
        "clip_norm": {"clip_norm": 1.0},
        "that pools rows": {"lookahead": 1},
    }
    for arguments in wrong.values():
        arguments = {"mode": "sync", **arguments}
        with pytest.raises(
            ConfigError,
            match="exchange that pools rows",
        ):
            ranks(2, lambda *_: None, placement=Placement("table_wise"), pools=True, **arguments)


@pytest.mark.parametrize("staleness", [1, 3])
def test_a_single_rank_has_the_staleness_of_one_process_to_the_bit(staleness: int) -> None:
    arguments = {"mode": "hybrid", "staleness": staleness, "epochs": 2}
    assert_same(trained(1, parts, **arguments), alone(parts(0), **arguments))


def test_with_staleness_all_ranks_miss_the_same_updates_and_runs_repeat_to_the_bit() -> None:
    first, second = (trained(3, parts, mode="hybrid", staleness=2, epochs=2) for _ in range(2))
    assert_same(first, second)
    assert first.result.staleness == {0: 2, 1: 2, 2: 10}
    sync = trained(3, parts, mode="sync", epochs=2)
    assert np.abs(first.dense - sync.dense).max() > 1e-4


@pytest.mark.cluster
@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param({"mode": "sync"}, marks=pytest.mark.slow),
        {"mode": "sync", "lookahead": 2, "placement": MIXED},
        {"mode": "sync", "placement": Placement("table_wise"), "pools": True},
        pytest.param({"mode": "hybrid", "staleness": 3}, marks=pytest.mark.slow),
        {"mode": "hybrid", "staleness": 2, "placement": MIXED},
        {"mode": "sync", "dense": "int8"},
        {"mode": "sync", "dense": "powersgd 1"},
    ],
)
@pytest.mark.parametrize("delta", [pytest.param(None, marks=pytest.mark.slow), 2])
def test_a_killed_run_resumes_to_the_bit(
    arguments: dict[str, Any], delta: int | None, tmp_path: Path
) -> None:
    # With deltas, only the first snapshot is full: the newest one is a delta, whenever it was written.
    plan = Checkpointing(str(tmp_path), every_steps=12 if delta else 6, delta_every_steps=delta)

    def killed(trainer: Trainer, rank: int) -> None:
        with pytest.raises(KilledError):
            trainer.fit(parts(rank), epochs=2, checkpoint=plan, observers=[KillAt(11)])

    def resumed(trainer: Trainer, rank: int) -> tuple[Answer, Rows]:
        result = trainer.fit(parts(rank), epochs=2, checkpoint=plan, resume=True)
        return Answer(trainer, result, {}), contents(trainer)

    ranks(2, killed, **arguments)
    answers, rows = zip(*ranks(2, resumed, **arguments), strict=True)
    answers[0].rows = rows_of(list(rows))
    assert_same(answers[0], trained(2, parts, epochs=2, **arguments))


def test_the_saved_model_is_that_of_one_process_and_loads_anywhere(tmp_path: Path) -> None:
    place = str(tmp_path / "model")

    def save(trainer: Trainer, rank: int) -> tuple[Answer, Rows]:
        result = trainer.fit(parts(rank))
        trainer.save(place)
        return Answer(trainer, result, {}), contents(trainer)

    def load(trainer: Trainer, rank: int) -> Rows:
        trainer.state.restore(read_checkpoint(place))
        return contents(trainer)

    answers, rows = zip(*ranks(3, save, mode="sync"), strict=True)
    one = Trainer.load(place, Tower())
    assert_same(
        Answer(one, answers[0].result, contents(one)), Answer(one, answers[0].result, rows_of(list(rows)))
    )
    one.close()
    there = rows_of(ranks(2, load, mode="sync"))
    for table, columns in rows_of(list(rows)).items():
        assert all(np.array_equal(x, y) for x, y in zip(columns, there[table], strict=True))


def test_a_model_that_cannot_be_written_is_said_and_nobody_waits(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    def save(trainer: Trainer, rank: int) -> tuple[str, bool]:
        trainer.fit(parts(rank))
        kept, error = trainer.state.save([str(tmp_path / "file" / "model"), str(tmp_path / "model")])
        return kept, error is not None

    assert ranks(2, save, mode="sync") == [(str(tmp_path / "model"), True), (str(tmp_path / "model"), False)]


@pytest.mark.cluster
def test_best_weights_wait_for_a_snapshot_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, write = Checkpointing(str(tmp_path), every_steps=6), StorePart.write

    def slow(part: StorePart, storage: Any, folder: str) -> Any:
        time.sleep(0.5)
        return write(part, storage, folder)

    def work(trainer: Trainer, rank: int) -> Any:
        return trainer.fit(parts(rank), validation=parts(3 - rank), epochs=2, checkpoint=plan).metrics

    quick = ranks(2, work, mode="sync", patience=3)
    monkeypatch.setattr(StorePart, "write", slow)
    assert ranks(2, work, mode="sync", patience=3) == quick


def test_the_best_weights_are_brought_back_on_all_ranks(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {
        "mode": "sync",
        "epochs": 4,
        "patience": 1,
        "validation": lambda r: parts(3 - r),
        "embedding_optimizer": satrap.optim.Adagrad(lr=0.2),  # labels are noise: it must overfit
    }
    mine = trained(2, parts, **arguments)
    servers = distributed(2, 2, parts, **arguments)
    assert mine.result.stopped == "patience"
    assert_same(mine, servers[0])
    assert mine.result.metrics == servers[0].result.metrics
