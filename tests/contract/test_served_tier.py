"""A server with memory for a part of its rows answers as one with all of them, also while versions come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from satrap import launch
from satrap.checkpoint import Series
from satrap.checkpoint.chain import deltas_since
from satrap.checkpoint.files.storage import Storage
from satrap.checkpoint.manifest import read_manifest
from satrap.config import load
from satrap.errors import ConfigError
from satrap.exchange import LocalExchange
from satrap.launch.folder.run_folder import RunFolder
from satrap.launch.scoring import load_served, scoring_recipe
from satrap.serve.http.request import ScoreRequest
from satrap.serve.scoring.model import ServedModel
from satrap.serve.shards.kept_rows import KeptRows, Version
from satrap.serve.shards.process import version_of
from satrap.serve.versions.update import changed_rows
from satrap.store import BUCKETS, Shard
from tests.support.snapshots import written_at_once

USERS = 20_000
RECIPE = """\
data: {train: rows.parquet, batch_size: 2000}
labels: [clicked]
features:
  user: {dim: 4}
  age:  {numeric: true}
model: {name: dnn, hidden: [8]}
embedding: {optimizer: {name: adam, lr: 0.01}}
dense: {optimizer: {name: adam, lr: 0.01}}
training: {mode: sync, epochs: 2}
checkpoint: {every_steps: 999, delta_every_steps: 5}
"""
MEMORY, SIZE = 900_000, 480_000


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder, random = tmp_path_factory.mktemp("tier"), np.random.default_rng(1)
    rows = {
        "user": random.permutation(USERS),
        "age": random.normal(size=USERS),
        "clicked": random.integers(0, 2, USERS),
    }
    pd.DataFrame(rows).to_parquet(folder / "rows.parquet")
    (folder / "users.yaml").write_text(RECIPE, encoding="utf-8")
    with written_at_once():
        launch.train(load(folder / "users.yaml"), str(folder / "users"))
    return RunFolder.open(folder / "users")


def served(run: RunFolder, place: str, tier: Path | None) -> tuple[ServedModel, Shard]:
    keys = (
        () if tier is None else (f"serving.memory={MEMORY}", f"serving.tier={{path: {tier}, size: {SIZE}}}")
    )
    predictor = load_served(run, scoring_recipe(run, keys), place)
    assert isinstance(predictor.exchange, LocalExchange)
    version = read_manifest(Storage(place)).id
    return ServedModel("users", predictor, version=version), predictor.exchange.shard


def asked(random: np.random.Generator, count: int = 200) -> ScoreRequest:
    users = (random.zipf(1.2, count) % (USERS + 50)).tolist()
    return ScoreRequest(count, {}, {"user": users, "age": random.normal(size=count).tolist()})


def test_scores_are_equal_to_the_bit_while_versions_come(run: RunFolder, tmp_path: Path) -> None:
    series = Series(str(run.checkpoints))
    first, *later = series.steps()
    [whole, rows], [part, few] = (served(run, series.place(first), tier) for tier in (None, tmp_path))
    assert few.groups[0].directory.limit < USERS / 4
    assert few.groups[0].plan.width == 0  # no optimizer state, on the disk neither
    random, steps = np.random.default_rng(3), []
    for step in [first, *later]:
        if step != first:
            deltas = deltas_since(series.place(step), whole.version)
            assert deltas is not None
            for model in (whole, part):
                model.apply(model.prepare(deltas))
        for _ in range(30):
            one = asked(random)
            found = [model.score(model.encode([one])) for model in (whole, part)]
            np.testing.assert_array_equal(found[0], found[1])
            for model in (whole, part):
                model.fold()  # between two requests, as in a server
        for model in (whole, part):
            while not model.settled:
                model.fold()
        steps.append(part.step)
    assert steps == [first, *later]
    tier = part.stored()[1]
    assert tier.rows > USERS / 2
    assert tier.reads > 100
    assert rows.statistics().rows == few.statistics().rows
    assert part.stored()[0] < MEMORY
    with pytest.raises(ConfigError, match="do not fit"):
        load_served(run, scoring_recipe(run, ["serving.memory=200000"]), series.place(first))
    whole.close()
    part.close()


def test_a_shard_with_a_tier_has_each_version_as_it_was(run: RunFolder, tmp_path: Path) -> None:
    """The old rows that it keeps come from memory and from the disk."""
    series = Series(str(run.checkpoints))
    first, second, *_ = series.steps()
    _, few = served(run, series.place(first), tmp_path)
    _, before = served(run, series.place(first), None)
    _, after = served(run, series.place(second), None)
    storage = Storage(series.place(first))
    kept = KeptRows(few, version_of(storage, read_manifest(storage)))
    storage = Storage(series.place(second))
    version, [old] = version_of(storage, read_manifest(storage)), kept.versions
    deltas: Any = deltas_since(series.place(second), old.id)
    kept.begin(version, changed_rows(deltas, few, range(BUCKETS)))
    random = np.random.default_rng(4)

    def check() -> None:
        from satrap.exchange.lookup import LookupRequest

        chunk = next(iter(before.export("user", chunk_rows=USERS)))
        ids = random.choice(chunk.ids, 300, replace=False)
        request = LookupRequest(0, ids, np.array([0, len(ids)], np.int64))
        pairs: list[tuple[Version, Shard]] = [(old, before), (version, after)]
        for one, store in pairs:
            [(rows, _)] = kept.peek(one, [request])
            np.testing.assert_array_equal(rows, store.peek("user", ids)[0])

    check()
    while kept.fold():
        check()
    check()
    kept.close()
