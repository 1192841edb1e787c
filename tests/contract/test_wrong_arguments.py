"""Every public call, with wrong values in each argument: an error names the argument."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import satrap
from satrap.data.dataset import Settings
from satrap.embedding import tables_of
from satrap.errors import SatrapError
from satrap.exchange import LocalExchange
from satrap.store import RowChunk, StoreConfig
from satrap.store.shard import open_store
from tests.models.retrieval.histories import NAMES as NEXT_ITEM
from tests.models.sequence.histories import NAMES as HISTORIES
from tests.train.plain import Batches, Tower, make_batches, make_schema


class Alien:
    """What no argument asks for."""


WRONG = (
    Alien(),
    Alien,
    "four",
    None,
    -1,
    2.5,
    True,
    [Alien()],
    {"a": Alien()},
    torch.nn.Linear(1, 1),
)

HANDED_OUT = {
    "satrap.EmbeddedBatch",
    "satrap.Schema.from_dict",
    "satrap.data.RowSplit.before",
    "satrap.store.Changes",
    "satrap.store.Delta",
    "satrap.store.GroupStore",
    "satrap.store.Shard.check_batch",
    "satrap.store.Shard.look_up_batch",
    "satrap.store.Shard.prepare_batch",
    "satrap.store.Shard.update_batch",
    "satrap.store.Slots",
    "satrap.store.Statistics",
    "satrap.store.TableSettings.of",
    "satrap.train.Observer",
    "satrap.train.Predictor.logits",
    "satrap.train.Predictor.output",
    "satrap.train.Predictor.outputs",
    "satrap.train.Predictor.predicted",
    "satrap.train.Progress",
    "satrap.train.Progress.of",
    "satrap.train.Result",
}
"""What satrap makes and users get, and what reads it back; of an observer, satrap calls the methods."""

ANYTHING = {
    "satrap.Batch.position",
    "satrap.data.Join.source",
}
"""Arguments that take any value, or one that only `read` can judge."""


class Call(NamedTuple):
    """A public call, and arguments that it takes."""

    call: Callable[..., Any]
    arguments: dict[str, Any]


SCHEMA = make_schema()
IDS = np.arange(4, dtype=np.uint64)
SPLITS = np.array([0, 4])
ROWS = np.ones((4, 8), np.float32)
INVERSE = np.arange(4, dtype=np.int32)
TRUTH = np.array([[0.0], [1.0]], np.float32)
LABEL = satrap.Label(name="price", kind="regression", mean=1.0, std=1.0)
COLUMNS = {"user": [1, 2], "item": [1, 2], "tags": [[1], [2]], "price": [0.5, 1.0], "clicked": [0, 1]}
SGD = satrap.optim.SGD(lr=0.1)


def table() -> satrap.Table:
    return satrap.Table("user", dim=8, optimizer=SGD)


def own(labels: Any, predictions: Any) -> float:
    return 0.5


class Things:
    """Open objects whose methods are called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.trainer = satrap.Trainer(Tower(), SCHEMA, embedding_optimizer=SGD, dense_optimizer=_adam)
        self.trainer.save(str(folder / "model"))
        self.untrained = satrap.Trainer(Tower(), SCHEMA, embedding_optimizer=SGD, dense_optimizer=_adam)
        self.shard = satrap.store.Shard([table()])
        tables = tables_of(SCHEMA, SGD)
        first, self.exchange = (LocalExchange(open_store(StoreConfig(), tables)) for _ in range(2))
        self.predictor = satrap.train.Predictor(Tower(), SCHEMA, first)
        self.dataset = satrap.data.read(COLUMNS, SCHEMA)
        self.embeddings = satrap.nn.EmbeddingCollection(SCHEMA)

    def close(self) -> None:
        self.trainer.close()
        self.untrained.close()
        self.shard.close()
        self.predictor.close()
        self.embeddings.close()


def _adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-3)


def constructors(things: Things) -> dict[str, Call]:
    """Return the calls that make something."""
    satrap_: Any = satrap
    found = {
        "satrap.Batch": {
            "size": 2,
            "ids": {"user": satrap.Jagged(IDS[:2])},
            "numeric": np.ones((2, 1), np.float32),
            "labels": TRUTH,
            "label_mask": TRUTH > 0,
            "weights": np.ones(2, np.float32),
            "groups": IDS[:2],
            "events": {},
        },
        "satrap.Categorical": {"dim": 8, "multi": True},
        "satrap.Jagged": {"values": IDS, "offsets": SPLITS, "weights": np.ones(4, np.float32)},
        "satrap.Label": {"name": "y"},
        "satrap.Numeric": {},
        "satrap.Schema": {"labels": ["y"], "features": {"x": satrap.Numeric()}},
        "satrap.Table": {"name": "user", "dim": 8},
        "satrap.Trainer": {"model": Tower(), "schema": SCHEMA, "embedding_optimizer": SGD},
        "satrap.Vector": {"dim": 8},
        "satrap.data.CsvOptions": {},
        "satrap.data.Dataset": {
            "source": things.dataset.source,
            "schema": SCHEMA,
            "settings": Settings(),
        },
        "satrap.data.IterableBatches": {"dataset": things.dataset},
        "satrap.data.Join": {"source": COLUMNS, "on": "user"},
        "satrap.data.RowSplit": {"modulo": 10, "keep": (1,)},
        "satrap.data.TimeRange": {"column": "at", "start": "2024-01-01"},
        "satrap.losses.BPR": {},
        "satrap.losses.PairLoss": {},
        "satrap.losses.SampledSoftmax": {},
        "satrap.metrics.BinaryMetrics": {"names": ["y"]},
        "satrap.metrics.GroupRankingMetrics": {"at": [5]},
        "satrap.metrics.RankingMetrics": {"at": [5]},
        "satrap.metrics.ClassMetrics": {},
        "satrap.metrics.Metrics": {"labels": SCHEMA.labels},
        "satrap.metrics.OwnMetrics": {"functions": [own], "widths": (1, 1), "grouped": False, "limit": 9},
        "satrap.metrics.RegressionMetrics": {"label": LABEL},
        "satrap.nn.EmbeddingCollection": {"features": {"user": satrap.Categorical(dim=8)}},
        "satrap.nn.RowOptimizer": {"embeddings": things.embeddings},
        "satrap.optim.Cosine": {"steps": 9},
        "satrap.optim.Exponential": {"gamma": 0.5},
        "satrap.optim.Staircase": {"every": 9},
        "satrap.optim.Constant": {},
        "satrap.optim.Schedule": {},
        "satrap.store.Admission": {},
        "satrap.store.RowChunk": {"table": "user", "ids": IDS, "weights": ROWS, "state": ROWS},
        "satrap.store.Eviction": {},
        "satrap.store.Shard": {"tables": [table()]},
        "satrap.store.StoreConfig": {},
        "satrap.store.TableSettings": {},
        "satrap.store.Tier": {"path": str(things.folder), "size": 1 << 20},
        "satrap.train.Ranking": {"at": (5,)},
        "satrap.train.Checkpointing": {"url": str(things.folder)},
        "satrap.train.Publishing": {"url": str(things.folder)},
        "satrap.train.WorkerContext": {},
        "satrap.train.Predictor": {"model": Tower(), "schema": SCHEMA, "exchange": things.exchange},
        "satrap.train.TrainingOptions": {},
    }
    history = satrap.Categorical(
        dim=8, table="item", multi=True, pooling="none", sequence="history", max_values=4
    )
    for name, _ in inspect.getmembers(satrap.models, inspect.isclass):
        if name in satrap.models.__all__:
            schema = make_schema(tags=history) if name.lower() in (*HISTORIES, *NEXT_ITEM) else SCHEMA
            if name == "ESMM":
                schema = satrap.Schema(["clicked", "bought"], SCHEMA.features)
            needed = {"item": ["item"]} if name == "TwoTower" else {}
            found[f"satrap.models.{name}"] = {"schema": schema, **needed}
    for kind in (satrap.optim.Optimizer, *satrap_.optim.KINDS):
        found[f"satrap.optim.{kind.__name__}"] = {"lr": 0.1, **({} if kind is not SGD else {"momentum": 0.5})}
    return {name: Call(_found(name), arguments) for name, arguments in found.items()}


def functions(things: Things) -> dict[str, Call]:
    """Return the public functions, and the methods that take arguments."""
    trainer, shard, predictor, dataset = things.trainer, things.shard, things.predictor, things.dataset
    data, batches = Batches(make_batches(1)), make_batches(1)
    url, chunk = str(things.folder / "model"), next(shard.export("user"), None)
    chunk = chunk or RowChunk("user", IDS, ROWS, np.empty((4, 0), np.float32))
    group = {"group": 0, "ids": IDS, "splits": SPLITS}
    pooled = {"inverse": INVERSE, "offsets": np.arange(5)}
    metrics: dict[str, Any] = {"labels": TRUTH, "mask": None, "weights": None, "groups": None}
    alone = {"truth": TRUTH[:, 0], "predictions": TRUTH[:, 0], "weights": np.ones(2, np.float32)}
    classes = {"truth": TRUTH[:, 0], "predictions": np.ones((2, 2), np.float32), "weights": np.ones(2)}
    model = {"model": Tower()}
    fit: dict[str, Any] = {
        "validation": None,
        "epochs": 1,
        "steps": None,
        "observers": (),
        "checkpoint": None,
    }
    split, times = satrap.data.RowSplit(10, (1,)), satrap.data.TimeRange("at", 1.0)
    config = StoreConfig()
    binary = satrap.metrics.BinaryMetrics(["y"])
    mine = satrap.metrics.OwnMetrics([own], (1, 1), grouped=False, limit=9)
    several, numbers = satrap.metrics.Metrics(SCHEMA.labels), satrap.metrics.RegressionMetrics(LABEL)
    rows = satrap.nn.RowOptimizer(things.embeddings)
    kinds, ranking = satrap.metrics.ClassMetrics(), satrap.train.Ranking((5,), among="items")
    ranked, grouped = satrap.metrics.RankingMetrics([5]), satrap.metrics.GroupRankingMetrics([5])
    return {
        "satrap.Schema.replace": Call(SCHEMA.replace, {"features": {}, "labels": None}),
        "satrap.Schema.table_of": Call(SCHEMA.table_of, {"feature": "user"}),
        "satrap.Table.admission_or": Call(table().admission_or, {"general": None}),
        "satrap.Table.eviction_or": Call(table().eviction_or, {"general": None}),
        "satrap.Table.part": Call(table().part, {"shards": 2}),
        "satrap.Trainer.evaluate": Call(trainer.evaluate, {"data": data}),
        "satrap.Trainer.fit": Call(
            trainer.fit, {"data": data, **fit, "checkpoint": None, "resume": False, "progress": False}
        ),
        "satrap.Trainer.load": Call(satrap.Trainer.load, {"url": url, **model, "memory": None}),
        "satrap.Trainer.warm_start": Call(things.untrained.warm_start, {"url": url, "state": False}),
        "satrap.Trainer.predict": Call(trainer.predict, {"data": data, "stream": False}),
        "satrap.Trainer.save": Call(trainer.save, {"url": url}),
        "satrap.data.Dataset.batches": Call(dataset.batches, {"epoch": 0, "position": None}),
        "satrap.data.Dataset.pieces": Call(dataset.pieces, {"cursor": None}),
        "satrap.data.Dataset.progress": Call(
            dataset.progress, {"position": next(dataset.batches()).position, "epoch": 0}
        ),
        "satrap.data.Dataset.single": Call(_file(things, dataset).single, {"file": 0}),
        "satrap.data.Dataset.tables_and_batches": Call(dataset.tables_and_batches, {"columns": None}),
        "satrap.data.Dataset.with_options": Call(
            dataset.with_options,
            {"schema": None, **{name: getattr(dataset.settings, name) for name in Settings.__slots__}},
        ),
        "satrap.data.IterableBatches.set_epoch": Call(
            satrap.data.IterableBatches(dataset).set_epoch, {"epoch": 1}
        ),
        "satrap.data.RowSplit.select": Call(split.select, {"start": 0, "count": 9}),
        "satrap.data.TimeRange.keeps": Call(times.keeps, {"seconds": np.ones(3)}),
        "satrap.data.hash_ids": Call(satrap.data.hash_ids, {"values": [1], "salt": 0}),
        "satrap.data.measure": Call(satrap.data.measure, {"schema": SCHEMA, "dataset": dataset}),
        "satrap.data.prefetch": Call(satrap.data.prefetch, {"items": [], "depth": 2}),
        "satrap.data.read": Call(
            satrap.data.read,
            {
                "source": COLUMNS,
                "schema": SCHEMA,
                "batch_size": 2,
                "shuffle": False,
                "rows": None,
                "join": (),
                "format": None,
                "csv": None,
            },
        ),
        "satrap.metrics.BinaryMetrics.merge": Call(
            binary.merge, {"other": satrap.metrics.BinaryMetrics(["y"])}
        ),
        "satrap.metrics.BinaryMetrics.restore": Call(binary.restore, {"state": binary.state()}),
        "satrap.metrics.BinaryMetrics.update": Call(binary.update, {**metrics, "probabilities": TRUTH}),
        "satrap.metrics.ClassMetrics.merge": Call(kinds.merge, {"other": satrap.metrics.ClassMetrics()}),
        "satrap.metrics.ClassMetrics.restore": Call(kinds.restore, {"state": kinds.state()}),
        "satrap.metrics.ClassMetrics.update": Call(kinds.update, classes),
        "satrap.losses.from_dict": Call(satrap.losses.from_dict, {"settings": {"name": "bpr"}}),
        "satrap.metrics.GroupRankingMetrics.merge": Call(grouped.merge, {"other": grouped}),
        "satrap.metrics.GroupRankingMetrics.restore": Call(grouped.restore, {"state": grouped.state()}),
        "satrap.metrics.GroupRankingMetrics.update": Call(
            grouped.update, {"groups": IDS[:2], "scores": TRUTH[:, 0], "relevant": TRUTH[:, 0] > 0}
        ),
        "satrap.metrics.Metrics.empty": Call(several.empty, {"ranking": True}),
        "satrap.metrics.Metrics.rank": Call(
            satrap.metrics.Metrics(SCHEMA.labels, ranking=ranking).rank,
            {"queries": IDS, "items": IDS, "ranks": SPLITS[:1].repeat(4) + 1, "tied": np.ones(4, np.int64)},
        ),
        "satrap.metrics.RankingMetrics.merge": Call(ranked.merge, {"other": ranked}),
        "satrap.metrics.RankingMetrics.restore": Call(ranked.restore, {"state": ranked.state()}),
        "satrap.metrics.RankingMetrics.update": Call(
            ranked.update, {"queries": IDS, "items": IDS, "ranks": np.ones(4, np.int64), "tied": None}
        ),
        "satrap.models.model_class": Call(satrap.models.model_class, {"name": "dnn"}),
        "satrap.train.Ranking.check": Call(ranking.check, {"schema": SCHEMA}),
        "satrap.train.Ranking.excludes_seen": Call(ranking.excludes_seen, {"schema": SCHEMA}),
        "satrap.train.TrainingOptions.suited": Call(
            satrap.train.TrainingOptions().suited, {"labels": SCHEMA.labels}
        ),
        "satrap.metrics.Metrics.merge": Call(several.merge, {"other": several.empty()}),
        "satrap.metrics.Metrics.restore": Call(several.restore, {"state": several.state()}),
        "satrap.metrics.Metrics.update": Call(several.update, {**metrics, "predictions": TRUTH}),
        "satrap.metrics.OwnMetrics.merge": Call(mine.merge, {"other": mine}),
        "satrap.metrics.OwnMetrics.restore": Call(mine.restore, {"state": mine.state()}),
        "satrap.metrics.OwnMetrics.update": Call(
            mine.update, {**metrics, "predictions": TRUTH, "weights": np.ones(2, np.float32)}
        ),
        "satrap.metrics.RegressionMetrics.merge": Call(numbers.merge, {"other": numbers}),
        "satrap.metrics.RegressionMetrics.restore": Call(numbers.restore, {"state": numbers.state()}),
        "satrap.metrics.RegressionMetrics.update": Call(numbers.update, alone),
        "satrap.metrics.criterion": Call(satrap.metrics.criterion, {"labels": SCHEMA.labels}),
        "satrap.models.arguments": Call(satrap.models.arguments, {"name": "dnn", "preset": None}),
        "satrap.models.create": Call(
            satrap.models.create, {"name": "dnn", "schema": SCHEMA, "preset": None, "hidden": [4]}
        ),
        "satrap.models.create_own": Call(
            satrap.models.create_own, {"reference": "satrap.models:LR", "schema": SCHEMA}
        ),
        "satrap.models.describe": Call(satrap.models.describe, model),
        "satrap.nn.RowOptimizer.step": Call(rows.step, {"closure": None}),
        "satrap.nn.RowOptimizer.zero_grad": Call(rows.zero_grad, {"set_to_none": True}),
        "satrap.optim.Schedule.factor": Call(satrap.optim.Constant().factor, {"step": 1}),
        "satrap.optim.from_dict": Call(satrap.optim.from_dict, {"settings": SGD.to_dict()}),
        "satrap.optim.schedule_from_dict": Call(
            satrap.optim.schedule_from_dict, {"settings": {"name": "constant"}}
        ),
        "satrap.store.RowChunk.pick": Call(chunk.pick, {"rows": slice(0, 1)}),
        "satrap.store.RowChunk.only_weights": Call(chunk.only_weights, {"dtype": "float16"}),
        "satrap.store.Eviction.check": Call(satrap.store.Eviction().check, {"memory": 9, "where": ""}),
        "satrap.store.Shard.check_gradients": Call(
            shard.check_gradients, {"groups": [0], "gradients": [ROWS]}
        ),
        "satrap.store.Shard.discard": Call(shard.discard, {"buckets": [4]}),
        "satrap.store.Shard.export": Call(shard.export, {"table": "user", "buckets": [1], "chunk_rows": 9}),
        "satrap.store.Shard.fetch_group": Call(shard.fetch_group, group),
        "satrap.store.Shard.group_of": Call(shard.group_of, {"table": "user"}),
        "satrap.store.Shard.remove": Call(shard.remove, {"table": "user", "ids": chunk.ids[:0]}),
        "satrap.store.Shard.load": Call(shard.load, {"table": "user", "chunk": chunk}),
        "satrap.store.Shard.load_group": Call(
            shard.load_group, {**group, "weights": ROWS, "state": np.empty((4, 0), np.float32)}
        ),
        "satrap.store.Shard.lookup": Call(shard.lookup, {"table": "user", "ids": IDS}),
        "satrap.store.Shard.lookup_group": Call(shard.lookup_group, {**group, "out": None}),
        "satrap.store.Shard.lookup_slots": Call(shard.lookup_slots, {**group, "out": None, "use": True}),
        "satrap.store.Shard.peek": Call(shard.peek, {"table": "user", "ids": IDS}),
        "satrap.store.Shard.peek_group": Call(shard.peek_group, {**group, "out": None, "slots": None}),
        "satrap.store.Shard.rows_by_bucket": Call(shard.rows_by_bucket, {"buckets": [1]}),
        "satrap.store.Shard.snapshot": Call(shard.snapshot, {"buckets": [1], "chunk_rows": 9}),
        "satrap.store.Shard.update": Call(
            shard.update, {"table": "user", "ids": IDS, "gradients": ROWS, "lr_scale": 1.0}
        ),
        "satrap.store.Shard.update_group": Call(
            shard.update_group, {**group, "gradients": ROWS, "lr_scale": 1.0, "slots": None, "checked": False}
        ),
        "satrap.store.StoreConfig.bounds": Call(config.bounds, {"tables": [table()]}),
        "satrap.store.StoreConfig.limited": Call(config.limited, {"by": StoreConfig()}),
        "satrap.store.open_store": Call(satrap.store.open_store, {"config": config, "tables": [table()]}),
        "satrap.store.StoreConfig.part": Call(config.part, {"shards": 2}),
        "satrap.store.Tier.check": Call(
            satrap.store.Tier(str(things.folder), 1 << 20).check,
            {"memory": 1 << 30, "eviction": satrap.store.Eviction()},
        ),
        "satrap.store.Tier.part": Call(
            satrap.store.Tier(str(things.folder), 1 << 20).part, {"share": 1, "whole": 2}
        ),
        "satrap.store.bucket_of": Call(satrap.store.bucket_of, {"table": "user", "ids": IDS}),
        "satrap.store.distinct": Call(satrap.store.distinct, {"ids": IDS, "splits": SPLITS}),
        "satrap.store.floats": Call(lambda shape: satrap.store.floats(shape), {"shape": 4}),
        "satrap.store.gather_features": Call(
            satrap.store.gather_features, {"rows": ROWS, "inverse": INVERSE, "features": 1, "out": None}
        ),
        "satrap.store.gather_features_backward": Call(
            satrap.store.gather_features_backward,
            {"gradients": ROWS[:, None], "inverse": INVERSE, "u": 4, "into": None},
        ),
        "satrap.store.pool": Call(
            satrap.store.pool, {"rows": ROWS, **pooled, "mode": "sum", "weights": None, "out": None}
        ),
        "satrap.store.pool_backward": Call(
            satrap.store.pool_backward,
            {
                "gradients": ROWS,
                **pooled,
                "u": 4,
                "mode": "sum",
                "weights": None,
                "argmax": None,
                "into": None,
            },
        ),
        "satrap.store.segment_sum": Call(
            satrap.store.segment_sum, {"gradients": ROWS, "inverse": INVERSE, "u": 4}
        ),
        "satrap.store.sum_features": Call(
            satrap.store.sum_features, {"gradients": ROWS[:, None], "inverse": INVERSE, "u": 4}
        ),
        "satrap.train.WorkerContext.from_environment": Call(
            satrap.train.WorkerContext.from_environment, {"store": config, "threads": 1, "deadline": 3.0}
        ),
        "satrap.train.Predictor.evaluate": Call(predictor.evaluate, {"data": data}),
        "satrap.train.Predictor.load": Call(
            satrap.train.Predictor.load, {"url": url, **model, "device": "cpu", "store": config, "threads": 1}
        ),
        "satrap.train.Predictor.measure": Call(predictor.measure, {"batches": batches}),
        "satrap.train.Predictor.predict": Call(predictor.predict, {"data": data, "stream": False}),
        "satrap.train.Predictor.predict_batches": Call(predictor.predict_batches, {"batches": batches}),
        "satrap.train.Predictor.scored": Call(predictor.scored, {"batches": batches}),
        "satrap.train.Predictor.tickets": Call(predictor.tickets, {"batches": batches}),
        "satrap.train.lookahead": Call(
            satrap.train.lookahead,
            {"items": [1], "issue": lambda item: item, "staleness": lambda _: 0, "ahead": None, "start": 0},
        ),
    }


def _file(things: Things, dataset: satrap.data.Dataset) -> satrap.data.Dataset:
    path = things.folder / "rows.csv"
    path.write_text("user,item,tags,price,clicked\n1,1,1,0.5,0\n")
    return satrap.data.read(str(path), dataset.schema)


def _found(name: str) -> Any:
    value: Any = satrap
    for part in name.split(".")[1:]:
        value = getattr(value, part)
    return value


@pytest.fixture(scope="module")
def things(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Things]:
    made = Things(tmp_path_factory.mktemp("things"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def calls(things: Things) -> dict[str, Call]:
    return constructors(things) | functions(things)


def public() -> Iterator[str]:
    """Yield every public callable that takes arguments, methods included."""
    for name in satrap.__all__:
        value = getattr(satrap, name)
        if isinstance(value, ModuleType):
            inner = [(f"satrap.{name}.{one}", getattr(value, one)) for one in dir(value)]
        else:
            inner = [(f"satrap.{name}", value)]
        for place, one in inner:
            if place in HANDED_OUT or not callable(one) or place == "satrap.train.Trainer":
                continue  # that is satrap.Trainer
            yield place
            if inspect.isclass(one) and not issubclass(one, torch.nn.Module):
                yield from _methods(place, one)


def _methods(place: str, kind: type) -> Iterator[str]:
    for key, method in inspect.getmembers(kind, callable):
        if key.startswith("_") or issubclass(kind, BaseException):
            continue
        of = next(base for base in kind.__mro__ if key in vars(base))
        if of is not kind and of.__name__ != "GroupRequests":
            continue
        takes = [p for p in inspect.signature(method).parameters if p != "self"]
        if takes and f"{place}.{key}" not in HANDED_OUT:
            yield f"{place}.{key}"


FUNCTIONS = {
    "satrap.nn.EmbeddingCollection.exchange",
    "satrap.nn.RowOptimizer.step.closure",
    "satrap.train.lookahead.issue",
    "satrap.train.lookahead.staleness",
}
"""Functions that are called; a class is one, and what it raises is its own."""

WITHOUT = {"satrap.models.names", "satrap.optim.names"}
"""They take no arguments."""


def test_the_inventory_is_complete(calls: dict[str, Call]) -> None:
    assert set(public()) - WITHOUT == set(calls)
    for call in calls.values():
        _used_up(call.call(**call.arguments))


def _used_up(result: Any) -> None:
    """Run a generator to its end, and close what can be closed."""
    if inspect.isgenerator(result):
        for _ in result:
            pass
    if callable(close := getattr(result, "close", None)):
        close()


def outcomes(name: str, call: Call) -> Iterator[str]:
    """Yield what is wrong with how a call takes wrong values."""
    takes = inspect.signature(call.call).parameters
    named = {n for n, p in takes.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    for argument in sorted(named | call.arguments.keys()):
        for value in WRONG:
            if f"{name}.{argument}" in FUNCTIONS and callable(value):
                continue
            place = f"{name}({argument}={value!r})"
            try:
                _used_up(call.call(**{**call.arguments, argument: value}))
            except SatrapError as error:
                shown = {argument, argument.replace("_", " "), repr(value), str(value), "column 'a'"}
                if not any(re.search(rf"(?<!\w){re.escape(one)}(?!\w)", str(error)) for one in shown):
                    yield f"{place} does not name it: {error}"
            except Exception as error:  # noqa: BLE001 - this is what must not be
                yield f"{place}: {type(error).__name__}: {error}"
            else:
                if isinstance(value, Alien) and f"{name}.{argument}" not in ANYTHING:
                    yield f"{place} is taken"


def test_wrong_arguments_are_refused_by_name(
    calls: dict[str, Call], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # "four" is a path, too
    found = [line for name, call in calls.items() for line in outcomes(name, call)]
    assert found == [], f"{len(found)}\n" + "\n".join(found)
