"""The items of an evaluation: of training rows and evaluated rows, or given; and lists that are too short."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import satrap
from satrap.data.streams import FolderLog, read_stream
from satrap.errors import ConfigError, DataError
from satrap.schema import Schema
from satrap.train import Predictor, Ranking
from tests.train.towers import AT, ITEM, TEST, TRAIN, read, schema_of, trainer_of


def test_given_items_are_ranked_alone_and_items_that_are_not_among_them_are_not_found() -> None:
    schema = schema_of()
    trainer = trainer_of(schema, Ranking(at=(5,), among="items"))
    listed = TRAIN.dropna(subset="item").drop_duplicates("item").head(10)
    columns = Schema((), {name: schema.features[name] for name in ITEM})
    trainer.predictor.lists.rank_among(satrap.data.read(listed[list(ITEM)], columns))
    trainer.fit(read(TRAIN, schema), validation=read(TEST, schema))
    assert trainer.predictor.lists.items is not None
    assert len(trainer.predictor.lists.items) == 10
    among = TEST[TEST["item"].isin(listed["item"])]
    all_rows, only = (trainer.evaluate(read(rows, schema)) for rows in (TEST, among))
    share = only["queries"] / all_rows["queries"]
    assert all_rows["recall@5"] == pytest.approx(only["recall@5"] * share)
    trainer.close()


def saved(folder: Path, exclude: str) -> tuple[satrap.Schema, dict[str, float]]:
    """Train and save a model; return its schema and its metrics of the test rows."""
    schema = schema_of("user")
    trainer = trainer_of(schema, Ranking(at=AT, among="items", exclude=exclude))
    trainer.fit(read(TRAIN, schema))
    found = trainer.evaluate(read(TEST, schema))
    trainer.save(str(folder))
    trainer.close()
    return schema, found


def test_a_saved_model_ranks_the_items_that_it_is_given(tmp_path: Path) -> None:
    schema, found = saved(tmp_path, "history")
    predictor = Predictor.load(str(tmp_path))
    with pytest.raises(ConfigError, match="items to rank are unknown"):
        predictor.evaluate(read(TEST, schema))
    predictor.lists.rank_among(read(pd.concat([TRAIN, TEST]), schema))
    assert predictor.evaluate(read(TEST, schema)) == pytest.approx(found)
    predictor.close()
    other = Predictor.load(str(tmp_path), ranking=Ranking(at=(3,)))
    assert next(name for name in other.evaluate(read(TEST, schema)) if "@" in name) == "hit_rate@3"
    other.close()


def test_a_saved_model_is_given_the_rows_that_users_have_seen(tmp_path: Path) -> None:
    schema, found = saved(tmp_path, "user")
    with closing(Predictor.load(str(tmp_path))) as predictor:
        predictor.lists.rank_among(read(pd.concat([TRAIN, TEST]), schema))
        with pytest.raises(ConfigError, match="items that users have seen are unknown"):
            predictor.evaluate(read(TEST, schema))
        predictor.lists.trained_on(read(TRAIN, schema))
        assert predictor.evaluate(read(TEST, schema)) == pytest.approx(found)


def test_a_few_items_are_refused_before_the_training() -> None:
    schema = schema_of()
    trainer = trainer_of(schema, Ranking(at=(500,), among="items"))
    with pytest.raises(DataError, match="first 500 items, but the number of items is 64"):
        trainer.fit(read(TRAIN, schema), validation=read(TEST, schema))
    assert trainer.run.steps == 0
    trainer.close()


def test_without_items_nothing_is_ranked() -> None:
    schema = schema_of()
    trainer = trainer_of(schema, Ranking(at=AT, among="items"))
    found = trainer.predictor.measure(read(TEST, schema).batches()).compute()
    assert not [name for name in found if "@" in name]
    with pytest.raises(ConfigError, match="among items are not enabled"):
        trainer_of(schema_of("user"), Ranking(at=AT)).predictor.lists.rank_among(read(TEST, schema))


def test_a_log_that_may_not_end_needs_given_items(tmp_path: Path) -> None:
    schema = schema_of()
    trainer = trainer_of(schema, Ranking(at=AT, among="items"))
    with pytest.raises(ConfigError, match="a log may never end"):
        trainer.fit(read_stream(FolderLog(str(tmp_path)), schema))
    trainer.close()
    trainer = trainer_of(schema, Ranking(at=AT, among="items", exclude="user"))
    trainer.predictor.lists.rank_among(read(TRAIN, schema))
    with pytest.raises(ConfigError, match="items that users have seen are unknown, because a log may never"):
        trainer.fit(read_stream(FolderLog(str(tmp_path)), schema))
    trainer.close()


@pytest.mark.parametrize("every_event", [False, True])
def test_events_that_a_model_predicts_are_ranked(every_event: bool) -> None:
    event: dict[str, Any] = {"multi": True, "pooling": "none", "sequence": "h", "max_values": 4}
    features = {
        "history": satrap.Categorical(dim=4, table="movie", **event),
        "movie": satrap.Categorical(dim=4),
    }
    schema = satrap.Schema([satrap.Label(name="seen", implicit=True)], features)
    rows = {"movie": [1, 2, 3], "history": [[4, 5], [5], [6, 1]]}
    model = satrap.models.create("sasrec", schema, every_event=every_event)
    options = satrap.train.TrainingOptions(ranking=satrap.train.Ranking((2,), among="items"))
    loss, data = satrap.losses.SampledSoftmax(), satrap.data.read(rows, schema)
    with closing(satrap.Trainer(model, schema, mode="sync", loss=loss, training=options)) as trainer:
        trainer.fit(data, validation=data)
        assert trainer.predictor.lists.items is not None
        assert len(trainer.predictor.lists.items) == (6 if every_event else 3)
