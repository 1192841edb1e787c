"""Ranks among all items: those of a plain loop over the vectors of users and items."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import satrap
from satrap.batch import Batch, Jagged
from satrap.errors import ConfigError, DataError
from satrap.schema import Schema
from satrap.train import Predictor, Ranking, Trainer, TrainingOptions, item_ranking
from satrap.train.item_ranking import Items, features_of, key_of
from satrap.train.tower_vectors import TowerVectors

AT = (1, 5, 20)
ITEM = ("item", "kind", "price")


def schema_of(group: str | None = None, **changes: Any) -> Schema:
    features: dict[str, Any] = {
        "user": satrap.Categorical(dim=4),
        "age": satrap.Numeric(),
        "history": satrap.Categorical(dim=4, multi=True, table="item"),
        "item": satrap.Categorical(dim=4),
        "kind": satrap.Categorical(dim=4),
        "price": satrap.Numeric(),
    }
    return Schema(["liked"], features | changes, group=group)


def frame(count: int = 600, seed: int = 0, items: int = 60) -> pd.DataFrame:
    """Users with a constant history; item 0 is missing, and some rows have an item of their history."""
    random = np.random.default_rng(seed)
    users = random.integers(0, 25, count)
    item = random.integers(0, items, count)
    histories = [list(np.random.default_rng(user).integers(1, items, user % 7)) for user in range(25)]
    return pd.DataFrame(
        {
            "user": users,
            "age": users / 25,
            "history": [histories[user] for user in users],
            "item": [None if one == 0 else str(one) for one in item],
            "kind": item % 4,
            "price": item / items,
            "liked": (random.random(count) < 0.7).astype(int),
        }
    )


TRAIN, TEST = frame(), frame(200, seed=1, items=66)


def trainer_of(schema: Schema, ranking: Ranking | None, model: nn.Module | None = None) -> Trainer:
    torch.manual_seed(1)
    model = model or satrap.models.TwoTower(schema, item=ITEM, hidden=[8], width=6)
    options = TrainingOptions(ranking=ranking)
    optimizer = satrap.optim.Adagrad(lr=0.5)
    return Trainer(model, schema, embedding_optimizer=optimizer, training=options)


def read(rows: pd.DataFrame, schema: Schema, size: int = 64) -> satrap.data.Dataset:
    return satrap.data.read(rows, schema, batch_size=size)


def vectors_of(trainer: Trainer, tower: str, rows: pd.DataFrame) -> np.ndarray:
    made = TowerVectors(trainer.predictor, tower)
    [batch] = satrap.data.read(rows, made.schema, batch_size=len(rows)).batches()
    return made(batch).astype(np.float64)


def expected(trainer: Trainer, group: str | None, exclude: bool) -> dict[str, float]:
    """The metrics of the test rows from the definitions."""
    rows = pd.concat([TRAIN, TEST]).dropna(subset="item").drop_duplicates("item")
    items = vectors_of(trainer, "item", rows)
    names = rows["item"].tolist()
    test = TEST[TEST.liked == 1].dropna(subset="item").reset_index(drop=True)
    users = vectors_of(trainer, "user", test)
    lists: dict[Any, dict[str, int]] = {}
    for number, row in test.iterrows():
        own, seen = row["item"], {str(one) for one in row["history"]} if exclude else set()
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
@pytest.mark.parametrize("exclude", [None, "history"])
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
    wanted = expected(trainer, group, exclude is not None)
    assert {name: found[name] for name in wanted} == pytest.approx(wanted, abs=1e-7)
    assert wanted["recall@20"] > wanted["recall@5"] > 0
    assert trainer.statistics().rows == before  # ranking creates no rows
    assert result.history[-1] == pytest.approx(found)
    trainer.close()


def test_items_of_trained_events_are_ranked() -> None:
    past = satrap.Categorical(dim=4, multi=True, pooling="none", sequence="past", table="item", max_values=3)
    schema = Schema(["liked"], {"past": past, "item": satrap.Categorical(dim=4)})
    rows = {"past": [["a", "b", "c"], ["d"]], "item": ["b", "e"], "liked": [1, 0]}
    data = satrap.data.read(rows, schema, batch_size=2)
    for every_event, count in ((True, 5), (False, 2)):
        model = satrap.models.create("sasrec", schema, every_event=every_event)
        trainer = trainer_of(schema, Ranking(at=(1,), among="items"), model)
        trainer.fit(data)
        trainer.evaluate(data)
        assert trainer.predictor.items is not None
        assert len(trainer.predictor.items) == count
        trainer.close()


def test_given_items_are_ranked_alone_and_items_that_are_not_among_them_are_not_found() -> None:
    schema = schema_of()
    trainer = trainer_of(schema, Ranking(at=(5,), among="items"))
    listed = TRAIN.dropna(subset="item").drop_duplicates("item").head(10)
    columns = Schema((), {name: schema.features[name] for name in ITEM})
    trainer.predictor.rank_among(satrap.data.read(listed[list(ITEM)], columns))
    trainer.fit(read(TRAIN, schema), validation=read(TEST, schema))
    assert trainer.predictor.items is not None
    assert len(trainer.predictor.items) == 10
    among = TEST[TEST["item"].isin(listed["item"])]
    all_rows, only = (trainer.evaluate(read(rows, schema)) for rows in (TEST, among))
    share = only["queries"] / all_rows["queries"]
    assert all_rows["recall@5"] == pytest.approx(only["recall@5"] * share)
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
    assert trainer.predictor.items is not None
    chance = 10 / len(trainer.predictor.items)
    assert found["recall@10"] == pytest.approx(0 if math.isnan(value) else chance)
    trainer.close()


def test_a_saved_model_ranks_the_items_that_it_is_given(tmp_path: Path) -> None:
    schema = schema_of("user")
    trainer = trainer_of(schema, Ranking(at=AT, among="items", exclude="history"))
    trainer.fit(read(TRAIN, schema))
    found = trainer.evaluate(read(TEST, schema))
    trainer.save(str(tmp_path))
    trainer.close()
    predictor = Predictor.load(str(tmp_path))
    with pytest.raises(ConfigError, match="items to rank are unknown"):
        predictor.evaluate(read(TEST, schema))
    predictor.rank_among(read(pd.concat([TRAIN, TEST]), schema))
    assert predictor.evaluate(read(TEST, schema)) == pytest.approx(found)
    predictor.close()
    other = Predictor.load(str(tmp_path), ranking=Ranking(at=(3,)))
    assert next(name for name in other.evaluate(read(TEST, schema)) if "@" in name) == "hit_rate@3"
    other.close()


def test_a_few_items_are_refused_before_the_training() -> None:
    schema = schema_of()
    trainer = trainer_of(schema, Ranking(at=(500,), among="items"))
    with pytest.raises(DataError, match="first 500 items, but there are 64"):
        trainer.fit(read(TRAIN, schema), validation=read(TEST, schema))
    assert trainer.run.steps == 0
    trainer.close()


@pytest.mark.parametrize(
    ("changes", "exclude", "message"),
    [
        ({}, "user", "'user', which is not a feature of several ids"),
        ({}, "histori", "'histori', which is not a feature of several ids"),
        (
            {"history": satrap.Categorical(dim=4, multi=True)},
            "history",
            "whose ids are not those of the items",
        ),
        (
            {"history": satrap.Categorical(dim=4, multi=True, table="item", buckets=9)},
            "history",
            "whose ids are not those of the items",
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
        key_of(satrap.models.TwoTower(schema, item=["price"], hidden=[4]), schema, ranking)
    two = Schema(["liked", "bought"], {"user": satrap.Categorical(dim=4)})
    with pytest.raises(ConfigError, match="needs one label, but there are 2"):
        ranking.check(two)


def test_without_items_nothing_is_ranked() -> None:
    schema = schema_of()
    trainer = trainer_of(schema, Ranking(at=AT, among="items"))
    found = trainer.predictor.measure(read(TEST, schema).batches()).compute()
    assert not [name for name in found if "@" in name]
    with pytest.raises(ConfigError, match="no items are ranked"):
        trainer_of(schema_of("user"), Ranking(at=AT)).predictor.rank_among(read(TEST, schema))


class Own:
    """A data set of the user's own, without a schema."""

    def __init__(self, batches: list[Batch]) -> None:
        self.items = batches

    def batches(self, epoch: int = 0, position: Any = None) -> Iterator[Batch]:
        return iter(self.items)


def test_items_of_a_data_set_are_its_distinct_ids() -> None:
    schema = schema_of()
    part = Schema((), {name: schema.features[name] for name in ITEM})
    batches = list(read(TRAIN, schema).batches())
    items = Items.of(read(TRAIN, schema), part, "item")
    other = Schema((), {name: each for name, each in schema.features.items()})
    plain = Items.of(Own([features_of(batch, other, part) for batch in batches]), part, "item")
    assert np.array_equal(items.ids, plain.ids)
    assert len(items) == TRAIN["item"].nunique()
    ids = np.concatenate([batch.ids["item"].values for batch in batches])
    assert np.array_equal(items.find(ids) < 0, ids == 0)
    assert np.array_equal(items.ids[items.find(ids[ids != 0])], ids[ids != 0])
    [again] = satrap.data.read(TRAIN.dropna(subset="item"), part, batch_size=1000).batches()
    assert again.numeric is not None
    assert items.rows.numeric is not None
    places = items.find(again.ids["item"].values)
    assert np.array_equal(items.rows.numeric[places], again.numeric)
    assert np.array_equal(items.rows.ids["kind"].values[places], again.ids["kind"].values)
    empty = Items("item", Batch(0, {"item": Jagged(np.empty(0, np.uint64))}))
    assert empty.find(ids).max() == -1
