"""Ranks among all items: those of a plain loop over the vectors of users and items."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import satrap
from satrap.batch import Batch
from satrap.errors import ConfigError, DataError
from satrap.schema import Schema
from satrap.train import Ranking, Trainer
from satrap.train.ranking import item_ranking
from satrap.train.ranking.item_ranking import check_towers, items_of
from satrap.train.ranking.tower_vectors import TowerVectors
from tests.train.towers import AT, ITEM, TEST, TRAIN, read, schema_of, trainer_of


def vectors_of(trainer: Trainer, tower: str, rows: pd.DataFrame) -> np.ndarray:
    made = TowerVectors(trainer.predictor, tower)
    [batch] = satrap.data.read(rows, made.schema, batch_size=len(rows)).batches()
    return made(batch).astype(np.float64)


def seen_by(row: pd.Series, exclude: str | None) -> set[str]:
    """The items that a list leaves out."""
    if exclude == "history":
        return {str(one) for one in row["history"]}
    same = TRAIN[(TRAIN[exclude] == row[exclude]) & (TRAIN.liked == 1)] if exclude else TRAIN[:0]
    return set(same["item"].dropna())


def expected(trainer: Trainer, group: str | None, exclude: str | None) -> dict[str, float]:
    """The metrics of the test rows from the definitions."""
    rows = pd.concat([TRAIN, TEST]).dropna(subset="item").drop_duplicates("item")
    items = vectors_of(trainer, "item", rows)
    names = rows["item"].tolist()
    test = TEST[TEST.liked == 1].dropna(subset="item").reset_index(drop=True)
    users = vectors_of(trainer, "user", test)
    lists: dict[Any, dict[str, int]] = {}
    for number, row in test.iterrows():
        own, seen = row["item"], seen_by(row, exclude)
        scores = dict(zip(names, items @ users[number], strict=True))
        rank = 1 + sum(scores[n] > scores[own] for n in names if n == own or n not in seen)
        key = (row["user"], own if own in seen else "") if group else number
        lists.setdefault(key, {})[own] = rank
    found: dict[str, list[float]] = {}
    for k in AT:
        for ranks in lists.values():
            places = sorted(rank for rank in ranks.values() if rank <= k)
            best = sum(1 / math.log2(i + 1) for i in range(1, min(len(ranks), k) + 1))
            found.setdefault(f"recall@{k}", []).append(len(places) / len(ranks))
            found.setdefault(f"hit_rate@{k}", []).append(float(bool(places)))
            found.setdefault(f"mrr@{k}", []).append(1 / places[0] if places else 0.0)
            found.setdefault(f"ndcg@{k}", []).append(sum(1 / math.log2(i + 1) for i in places) / best)
    return {name: float(np.mean(values)) for name, values in found.items()} | {"queries": len(lists)}


@pytest.mark.parametrize("group", [None, "user"])
@pytest.mark.parametrize("exclude", [None, "history", "user"])
@pytest.mark.parametrize("scores", [1 << 24, 300])
def test_metrics_are_those_of_a_loop_over_all_items(
    group: str | None, exclude: str | None, scores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(item_ranking, "SCORES", scores)
    monkeypatch.setattr(item_ranking, "ROWS", 7 if scores == 300 else 100)
    schema = schema_of(group)
    trainer = trainer_of(schema, Ranking(at=AT, among="items", exclude=exclude))
    result = trainer.fit(read(TRAIN, schema), validation=read(TEST, schema), epochs=2)
    before = trainer.statistics().rows
    found = trainer.evaluate(read(TEST, schema))
    wanted = expected(trainer, group, exclude)
    assert {name: found[name] for name in wanted} == pytest.approx(wanted, abs=1e-7)
    assert wanted["recall@20"] > wanted["recall@5"] > 0
    assert trainer.statistics().rows == before  # ranking creates no rows
    assert result.history[-1] == pytest.approx(found)
    trainer.close()


class Constant(nn.Module):
    """Every item has the same vector, or vectors that are not numbers."""

    def __init__(self, schema: Schema, value: float = 1.0) -> None:
        super().__init__()
        self.tower_features = {"user": ("user",), "item": ("item",)}
        self.scale, self.value = nn.Parameter(torch.ones(1)), value

    def tower_vectors(self, tower: str, batch: Any) -> torch.Tensor:
        return batch[tower] if tower == "user" else torch.full_like(batch[tower], self.value)

    def forward(self, batch: Any) -> torch.Tensor:
        return batch["user"].sum(1, keepdim=True) * self.scale


@pytest.mark.parametrize("value", [1.0, math.nan])
def test_a_model_that_does_not_tell_items_apart_gains_nothing(value: float) -> None:
    schema = schema_of()
    trainer = trainer_of(schema, Ranking(at=(10,), among="items"), Constant(schema, value))
    found = trainer.fit(read(TRAIN, schema), validation=read(TEST, schema)).metrics
    assert trainer.predictor.lists.items is not None
    chance = 10 / len(trainer.predictor.lists.items)
    assert found["recall@10"] == pytest.approx(0 if math.isnan(value) else chance)
    trainer.close()


@pytest.mark.parametrize(
    ("changes", "exclude", "message"),
    [
        ({}, "age", "'age', which is not a categorical feature"),
        ({}, "histori", "'histori', which is not a categorical feature\n.*\n.*did you mean 'history'"),
        ({}, "kind", "'kind', which describes an item"),
        ({"last": satrap.Categorical(dim=4, table="item")}, "last", "'last', which describes an item"),
        (
            {"history": satrap.Categorical(dim=4, multi=True)},
            "history",
            "does not have the ids of items",
        ),
        (
            {"history": satrap.Categorical(dim=4, multi=True, table="item", buckets=9)},
            "history",
            "does not have the ids of items",
        ),
    ],
)
def test_a_feature_that_names_no_items_is_refused(
    changes: dict[str, Any], exclude: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        trainer_of(schema_of(**changes), Ranking(at=AT, among="items", exclude=exclude))


def test_models_without_towers_and_items_without_a_key_are_refused() -> None:
    schema, ranking = schema_of(), Ranking(at=AT, among="items")
    with pytest.raises(ConfigError, match="DNN has no towers"):
        trainer_of(schema, ranking, satrap.models.DNN(schema, hidden=[4]))
    with pytest.raises(ConfigError, match="no feature identifies the items"):
        check_towers(satrap.models.TwoTower(schema, item=["price"], hidden=[4]), schema, ranking)
    two = Schema(["liked", "bought"], {"user": satrap.Categorical(dim=4)})
    with pytest.raises(ConfigError, match="needs one label, but there are 2"):
        ranking.check(two)


class Own:
    """A data set of the user's own, without a schema."""

    def __init__(self, batches: list[Batch]) -> None:
        self.items = batches

    def batches(self, epoch: int = 0, position: Any = None) -> Iterator[Batch]:
        return iter(self.items)


def test_items_of_any_data_set_are_its_distinct_ids() -> None:
    schema = schema_of()
    part = Schema((), {name: schema.features[name] for name in ITEM})
    items = items_of(read(TRAIN, schema), schema, part)
    batches = list(read(TRAIN, schema).batches())
    plain = items_of(Own(batches), schema, part)
    assert len(items) == TRAIN["item"].nunique()
    for one in (items, plain):
        ids = np.concatenate([batch.ids["item"].values for batch in batches])
        assert np.array_equal(one.find(ids) < 0, ids == 0)
        [again] = satrap.data.read(TRAIN.dropna(subset="item"), part, batch_size=1000).batches()
        assert again.numeric is not None
        assert one.items.numeric is not None
        places = one.find(again.ids["item"].values)
        assert np.array_equal(one.items.numeric[places], again.numeric)
        assert np.array_equal(one.items.ids["kind"].values[places], again.ids["kind"].values)
        assert np.array_equal(one.counts, np.bincount(places))
    with pytest.raises(DataError, match="no row has an item"):
        items_of(Own(batches[:0]), schema, part)
