"""Trainers with and without embedding workers on shards in threads, and data with every kind of feature."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import satrap
from satrap.batch import Batch, EmbeddedBatch, Jagged, JaggedRows
from satrap.dense import Workers
from satrap.embedding.workers import ClientThreads, EmbeddingService, PooledExchange
from satrap.exchange import Exchange
from satrap.exchange.servers import ClientOptions, ServersExchange, ShardServer, Wire, WorkerId
from satrap.optim import Adagrad
from satrap.rpc.server.server import Server
from satrap.schema import Categorical, Numeric, Schema
from satrap.store import StoreConfig
from tests.train.plain import grouped

EXACT = Wire("float32", "float32")
POOLINGS = ("sum", "mean", "sqrtn", "max")

SCHEMA = Schema(
    labels=["clicked"],
    features={
        "user": Categorical(dim=4),
        "item": Categorical(dim=4, table="things"),
        "seen": Categorical(dim=4, table="things", multi=True, pooling="mean", separator="|"),
        **{f"tags_{p}": Categorical(dim=8, multi=True, pooling=p, separator="|") for p in POOLINGS},
        "history": Categorical(dim=8, multi=True, pooling="none", separator="|"),
        "event": Categorical(dim=8, multi=True, pooling="none", sequence="past"),
        "place": Categorical(dim=8, multi=True, pooling="none", sequence="past"),
        "paid": Numeric(sequence="past"),
        "price": Numeric(),
    },
)


class Everything(nn.Module):
    """Uses every feature, the one that is not pooled by a mean over its rows, events by a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(3 * 4 + 4 * 8 + 8 + 1, 8)
        self.out = nn.Linear(8, 1)

    def forward(self, batch: EmbeddedBatch) -> Tensor:
        rows = batch.embeddings.get("history")
        parts = [batch[name] for name in batch.pooled()]
        if isinstance(rows, JaggedRows):
            padded, mask = rows.padded(6)
            event, place = batch.embeddings["event"], batch.embeddings["place"]
            assert isinstance(event, JaggedRows)
            assert isinstance(place, JaggedRows)
            paid = batch.events["paid"]
            assert paid.offsets is event.offsets
            past = JaggedRows(event.values * place.values * paid.values, event.offsets)
            parts.append(padded.sum(1) / mask.sum(1, keepdim=True).clamp(min=1) + past.padded(6)[0].sum(1))
        return self.out(torch.tanh(self.hidden(torch.cat([*parts, batch.numeric], 1))))


def batches(count: int, size: int = 16, seed: int = 0, ids: int = 40, weights: bool = True) -> list[Batch]:
    """Return batches with empty bags, repeated ids and, in two features, weights."""
    rng = np.random.default_rng(seed)

    past = np.append(0, np.cumsum(rng.integers(0, 4, size))).astype(np.int64)

    def jagged(name: str, feature: Categorical) -> Jagged:
        if feature.sequence:
            return Jagged(rng.integers(0, ids, past[-1]).astype(np.uint64), past)
        counts = rng.integers(0, 5, size) if feature.multi else np.ones(size, np.int64)
        values = rng.integers(0, ids, counts.sum()).astype(np.uint64)
        if not feature.multi:
            return Jagged(values)
        heavy = weights and name in ("tags_mean", "tags_sqrtn", "history")
        own = rng.uniform(0.5, 2, len(values)).astype(np.float32) if heavy else None
        return Jagged(values, np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), own)

    return [
        Batch(
            size,
            {name: jagged(name, feature) for name, feature in SCHEMA.categorical.items()},
            numeric=rng.standard_normal((size, 1)).astype(np.float32),
            labels=rng.integers(0, 2, (size, 1)).astype(np.float32),
            position=number,
            events={"paid": Jagged(rng.random(past[-1], dtype=np.float32), past)},
        )
        for number in range(count)
    ]


class Listed:
    """Batches as data; a pass may begin after a position."""

    def __init__(self, found: Sequence[Batch]) -> None:
        self.found = list(found)

    def batches(self, epoch: int = 0, position: Any = None) -> Iterator[Batch]:
        yield from self.found[0 if position is None else position + 1 :]


@contextmanager
def servers(shards: int, tiers: int) -> Iterator[tuple[list[str], list[Server]]]:
    """Run shards and embedding workers in threads; give addresses of the first, servers of the second."""
    with ExitStack() as stack:
        below = [stack.enter_context(ShardServer("127.0.0.1:0")) for _ in range(shards)]
        addresses = [server.address for server in below]
        middle = [stack.enter_context(embedding_worker(addresses)) for _ in range(tiers)]
        yield addresses, middle


def embedding_worker(shards: Sequence[str], listen: str = "127.0.0.1:0") -> Server:
    return Server(listen, EmbeddingService(shards), dispatcher=ClientThreads)


def trainer(
    shards: Sequence[str],
    tiers: Sequence[Server] = (),
    *,
    mode: str = "sync",
    wire: Wire = EXACT,
    workers: Workers | None = None,
    schema: Schema = SCHEMA,
    model: nn.Module | None = None,
    deadline: float = 20.0,
    **arguments: Any,
) -> satrap.Trainer:
    workers = workers or Workers()
    about: dict[str, Any] = {
        "store": StoreConfig(seed=3),
        "wire": wire,
        "mode": "sync" if mode == "sync" else "hybrid",
        "worker": WorkerId(workers.rank, workers.size),
        "options": ClientOptions(deadline=deadline, heartbeat=0.2),
    }

    def exchange(tables: Sequence[Any]) -> Exchange:
        if not tiers:
            return ServersExchange(shards, tables, **about)
        number = workers.rank % len(tiers)
        name, address = f"embedding worker {number}", tiers[number].address
        return PooledExchange(name, address, shards, schema, tables, **about)

    torch.manual_seed(1)
    return satrap.Trainer(
        model or Everything(),
        schema,
        **grouped(
            **{
                "embedding_optimizer": Adagrad(lr=0.1),
                "dense_optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
                "mode": mode,
                "threads": 1,
                "exchange": exchange,
                "workers": workers,
                **arguments,
            }
        ),
    )


def tables(trained: satrap.Trainer, exchange: Exchange | None = None) -> dict[str, dict[int, np.ndarray]]:
    """Rows by table and id; of the trainer's exchange, or another one."""
    found: dict[str, dict[int, np.ndarray]] = {}
    for table, chunk in (exchange or trained.exchange).rows.cut(still=True):
        found.setdefault(table, {}).update(zip(chunk.ids.tolist(), chunk.weights, strict=True))
    return found


def difference(one: satrap.Trainer, other: satrap.Trainer) -> float:
    """Return the largest difference of a row or of the network."""
    mine, theirs = tables(one), tables(other)
    assert {t: sorted(rows) for t, rows in mine.items()} == {t: sorted(rows) for t, rows in theirs.items()}
    rows = max(
        float(np.abs(row - theirs[t][i]).max()) for t, found in mine.items() for i, row in found.items()
    )
    weights = zip(one.model.parameters(), other.model.parameters(), strict=True)
    return max(rows, *(float((a - b).detach().abs().max()) for a, b in weights))
