"""A collection reads and creates rows as the rest of satrap does, and refuses what it cannot do."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import satrap
from satrap.errors import ConfigError, DataError
from satrap.exchange.servers import ServersExchange, Wire
from satrap.nn import EmbeddingCollection, RowOptimizer
from satrap.store import StoreConfig
from tests.contract.parties import threads
from tests.nn.loops import IDS, Network, batch, collection, loss_of, table
from tests.train.plain import Batches, Tower, make_batches, make_schema

TAGS = {"tags": satrap.Categorical(dim=4, multi=True)}
LISTS = [[3, 4], [], [3]]


def nested() -> Any:
    return torch.nested.nested_tensor(
        [torch.tensor(each, dtype=torch.int64) for each in LISTS], layout=torch.jagged
    )


@pytest.mark.parametrize(
    "given",
    [
        LISTS,
        (torch.tensor([3, 4, 3]), torch.tensor([0, 2, 2, 3])),
        (np.array([3, 4, 3]), np.array([0, 2, 2, 3], np.int32)),
        {"values": torch.tensor([3, 4, 3]), "lengths": torch.tensor([2, 0, 1])},
        {"values": [3, 4, 3], "offsets": [0, 2, 2, 3]},
        pa.array(LISTS),
        nested(),
    ],
    ids=lambda given: type(given).__name__,
)
def test_every_form_of_bags_has_the_same_rows(given: Any) -> None:
    embeddings = EmbeddingCollection(TAGS).eval()
    rows = embeddings({"tags": torch.tensor([[3], [4]])})["tags"]
    expected = torch.stack([rows[0] + rows[1], torch.zeros(4), rows[0]])  # type: ignore[index]
    assert torch.equal(embeddings({"tags": given})["tags"], expected)  # type: ignore[arg-type]
    embeddings.close()


def test_a_value_has_the_row_that_a_file_gives_it() -> None:
    schema = satrap.Schema(
        labels=["clicked"],
        features={
            "user": satrap.Categorical(dim=4),
            "city": satrap.Categorical(dim=4, vocabulary=("Bern", "Oslo")),
        },
        salt=7,
    )
    columns = {"user": ["7", "8", "x"], "city": ["Bern", "Rome", "Lima"], "clicked": [0, 1, 0]}
    (read,) = satrap.data.read(columns, schema)
    embeddings = EmbeddingCollection(schema).eval()
    from_columns, from_batch = embeddings(columns), embeddings(read)
    assert list(from_columns) == ["user", "city"]
    for name in from_columns:
        assert torch.equal(from_columns[name], from_batch[name])  # type: ignore[arg-type]
    assert torch.equal(
        from_columns["user"][0],  # type: ignore[index]
        embeddings({"user": torch.tensor([7]), "city": ["Bern"]})["user"][0],  # type: ignore[index]
    )
    assert torch.equal(from_columns["city"][1], from_columns["city"][2])  # type: ignore[index]
    embeddings.close()


def test_rows_that_are_not_pooled_come_with_offsets() -> None:
    history = {"seen": satrap.Categorical(dim=4, multi=True, pooling="none")}
    embeddings = EmbeddingCollection(history)
    seen = embeddings({"seen": LISTS})["seen"]
    assert seen.values.requires_grad
    assert (seen.values.shape, seen.offsets.tolist()) == ((3, 4), [0, 2, 2, 3])
    embeddings.close()


def test_reading_creates_no_row_and_sees_the_row_that_training_creates() -> None:
    embeddings = collection()
    columns = batch(1)
    with torch.no_grad():
        under_no_grad = embeddings(columns)
    evaluated = embeddings.eval()(columns)
    assert embeddings.exchange.telemetry.statistics().rows == 0
    trained = embeddings.train()(columns)
    assert embeddings.exchange.telemetry.statistics().rows > 0
    for name, vectors in trained.items():
        assert vectors.requires_grad  # type: ignore[union-attr]
        assert not evaluated[name].requires_grad  # type: ignore[union-attr]
        assert torch.equal(vectors, evaluated[name])  # type: ignore[arg-type]
        assert torch.equal(vectors, under_no_grad[name])  # type: ignore[arg-type]
    embeddings.close()


@pytest.mark.parametrize(
    "network",
    [
        lambda tower, embeddings, batch: tower(embeddings.embed(batch)),
        lambda tower, embeddings, batch: tower.net(
            torch.cat([*embeddings(batch).values(), torch.from_numpy(batch.numeric)], dim=1)
        ),
    ],
    ids=["embed", "forward"],
)
def test_the_loop_of_a_trainer_gives_the_same_bits(network: Callable[..., Any]) -> None:
    """An equal network, the same batches and store: equal weights and rows."""
    schema, batches = make_schema(), make_batches(12)
    torch.manual_seed(1)
    towers = Tower(), Tower()
    towers[1].load_state_dict(towers[0].state_dict())
    rows, store = satrap.optim.Adagrad(lr=0.1), StoreConfig(seed=3)
    trainer = satrap.Trainer(towers[0], schema, embedding_optimizer=rows, mode="sync", store=store)
    trainer.fit(Batches(batches))

    embeddings = EmbeddingCollection(schema, optimizer=rows, store=store)
    optimizers = torch.optim.Adam(towers[1].parameters(), lr=1e-3), RowOptimizer(embeddings)
    for each in batches:
        for optimizer in optimizers:
            optimizer.zero_grad()
        logits = network(towers[1], embeddings, each)
        torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.from_numpy(each.labels)).backward()
        for optimizer in optimizers:
            optimizer.step()
    for ours, theirs in zip(towers[1].parameters(), towers[0].parameters(), strict=True):
        assert torch.equal(ours, theirs)
    for each in batches:
        ticket = trainer.predictor.plan.ticket(each)
        for mine, its in zip(
            *(
                x.lookup(ticket.requests, create=False).result()
                for x in (embeddings.exchange, trainer.exchange)
            ),
            strict=True,
        ):
            np.testing.assert_array_equal(mine, its)
    trainer.close()
    embeddings.close()


@pytest.mark.cluster
def test_rows_in_shard_servers_train_in_the_same_way() -> None:
    trained = []
    with threads(2) as shards:
        servers = lambda tables: ServersExchange(  # noqa: E731
            [shard.address for shard in shards], tables, wire=Wire("float32", "float32")
        )
        for exchange in (None, servers):
            torch.manual_seed(0)
            embeddings, network = collection(exchange=exchange), Network()
            optimizer = RowOptimizer(embeddings)
            for seed in range(4):
                for microbatch in range(2):
                    columns = batch(10 * seed + microbatch)
                    loss_of(network(embeddings(columns)), columns).backward()
                optimizer.step()
            trained.append(table(embeddings))
            embeddings.close()
    for name, rows in trained[0].items():
        assert torch.equal(rows, trained[1][name])


def test_the_rows_of_other_devices_follow_the_module() -> None:
    embeddings = collection()
    assert embeddings.to("cpu", torch.float64)(batch(1))["user"].dtype == torch.float32  # type: ignore[union-attr]
    assert list(embeddings.parameters()) == []
    embeddings.close()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({}, "column 'tags' is missing"),
        ({"tag": LISTS}, "did you mean 'tag'"),
        ({"tags": (torch.tensor([1, 2]), torch.tensor([0, 1]))}, r"ascend from 0 to the number of values, 2"),
        ({"tags": (torch.tensor([1, 2]), torch.tensor([0.0, 2.0]))}, "whole numbers"),
        ({"tags": {"values": [1, 2], "lengths": [1]}}, "offsets must ascend"),
        ({"tags": torch.zeros(2, 2, 2)}, "batch, column 'tags'"),
        ({"tags": [object()]}, "batch, column 'tags'"),
    ],
)
def test_unusable_columns_are_refused_by_name(columns: Any, message: str) -> None:
    embeddings = EmbeddingCollection(TAGS)
    with pytest.raises(DataError, match=message):
        embeddings(columns)
    embeddings.close()


def test_columns_of_different_lengths_are_refused() -> None:
    embeddings = collection()
    with pytest.raises(DataError, match="column 'user' has 3 rows, but column"):
        embeddings({**batch(1), "user": [1, 2, 3]})
    embeddings.close()


def test_a_batch_of_other_features_is_refused() -> None:
    embeddings = EmbeddingCollection(TAGS)
    with pytest.raises(DataError, match="no feature 'tags'"):
        embeddings(satrap.Batch(1, {"user": satrap.Jagged(np.zeros(1, np.uint64))}))
    embeddings.close()


def test_copies_are_refused() -> None:
    embeddings = collection()
    for copied in (copy.deepcopy, pickle.dumps):
        with pytest.raises(ConfigError, match="cannot be copied or pickled"):
            copied(torch.nn.Sequential(embeddings))
    embeddings.close()


def test_several_processes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    embeddings = collection()
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.raises(ConfigError, match="trains in one process, here are 2"):
        embeddings(batch(1))
    embeddings.eval()(batch(1))
    embeddings.close()


@pytest.mark.parametrize(
    "how", [{"collective": True, "pooling": None}, {"collective": False, "pooling": "owner"}]
)
def test_an_exchange_that_does_not_return_rows_is_refused(how: Any) -> None:
    closed = []
    exchange = SimpleNamespace(**how, close=lambda: closed.append(True))
    with pytest.raises(ConfigError, match="does not return the rows of single ids to one process"):
        EmbeddingCollection(TAGS, exchange=lambda tables: exchange)
    assert closed == [True]


def test_features_without_ids_are_refused() -> None:
    with pytest.raises(ConfigError, match="the module would have no rows"):
        EmbeddingCollection(satrap.Schema(labels=[], features={"price": satrap.Numeric()}))


def test_it_shows_its_features() -> None:
    embeddings = EmbeddingCollection(TAGS)
    assert repr(embeddings).startswith("EmbeddingCollection(tags: 4, RowWiseAdagrad(lr=0.05")
    assert len(table(collection())["user"]) == IDS
    embeddings.close()
