"""Trainers of a small network, alone or as workers over shard servers, and what they end with."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch

import satrap
from satrap.batch import Batch, Jagged
from satrap.dense import Workers
from satrap.exchange.servers import Limits, ServersExchange, ShardServer, Wire
from satrap.train import Observer, Result, Trainer
from tests.contract import parties
from tests.dense.threads import together
from tests.train.plain import Batches, Tower, grouped, make_schema

EXACT = Wire("float32", "float32")
Rows = dict[str, tuple[np.ndarray, ...]]


def adam(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-2)


def make_trainer(**arguments: Any) -> Trainer:
    torch.manual_seed(3)
    defaults: dict[str, Any] = {
        "embedding_optimizer": satrap.optim.Adagrad(lr=0.05),
        "dense_optimizer": adam,
        "initial_scale": 0.5,
        "threads": 1,
    }
    model, schema = arguments.pop("model", None) or Tower(), arguments.pop("schema", None) or make_schema()
    return Trainer(model, schema, **grouped(**defaults | arguments))


def connecting(
    addresses: Sequence[str],
    *,
    mode: str = "hybrid",
    rank: int = 0,
    world: int = 1,
    deadline: float = 10.0,
    **bounds: Any,
) -> Callable[[Any], ServersExchange]:
    """Return what connects a trainer to shards, as the mode of the schedule says."""
    exchange_mode = "sync" if mode == "sync" else "hybrid"

    def connect(tables: Any) -> ServersExchange:
        chosen = {"mode": exchange_mode, "rank": rank, "world": world, "deadline": deadline, **bounds}
        return ServersExchange(addresses, tables, **{"wire": EXACT, **parties.grouped(**chosen)})

    return connect


def contents(trainer: Trainer) -> Rows:
    chunks = list(trainer.exchange.rows.cut(still=True))
    return {
        table: tuple(
            np.concatenate([getattr(c, field) for name, c in chunks if name == table])
            for field in ("ids", "weights", "state")
        )
        for table in dict.fromkeys(name for name, _ in chunks)
    }


def dense(trainer: Trainer) -> np.ndarray:
    return np.concatenate([p.detach().cpu().numpy().ravel() for p in trainer.model.parameters()])


def digest(trainer: Trainer) -> str:
    return hashlib.blake2b(dense(trainer).tobytes()).hexdigest()


class Answer:
    """What one worker ended with."""

    def __init__(self, trainer: Trainer, result: Result, rows: Rows) -> None:
        self.result, self.rows = result, rows
        self.dense, self.digest, self.lr_scale = dense(trainer), digest(trainer), trainer.control.lr_scale


def distributed(
    world: int,
    shards: int,
    data: Callable[[int], Batches],
    validation: Callable[[int], Batches] | None = None,
    *,
    epochs: int = 1,
    observers: Callable[[int], Sequence[Observer]] = lambda _: (),
    limits: Limits | None = None,
    deadline: float = 10.0,
    bounds: Mapping[str, Any] | None = None,
    dense: str = "float32",
    **arguments: Any,
) -> list[Answer]:
    """Train with worker threads and shard servers; return what each worker ended with.

    `dense` is the number format of the network's gradients.
    """
    mode = "hybrid" if arguments.get("lookahead") else arguments.get("mode", "hybrid")
    with ExitStack() as stack:
        servers = [stack.enter_context(ShardServer("127.0.0.1:0", limits=limits)) for _ in range(shards)]
        addresses = [server.address for server in servers]

        def work(workers: Workers) -> Answer:
            about = {"rank": workers.rank, "world": world, "deadline": deadline, **(bounds or {})}
            connect = connecting(addresses, mode=mode, **about)
            # Building a model draws from PyTorch's one generator: one at a time.
            for rank in range(world):
                if workers.rank == rank:
                    trainer = make_trainer(exchange=connect, workers=workers, **arguments)
                workers.meet("built")
            result = trainer.fit(
                data(workers.rank),
                validation=None if validation is None else validation(workers.rank),
                epochs=epochs,
                observers=observers(workers.rank),
            )
            workers.meet("trained")
            rows = contents(trainer) if workers.rank == 0 else {}
            workers.meet("read")
            trainer.close()
            return Answer(trainer, result, rows)

        return together(world, work, dense=dense)


def alone(data: Batches, validation: Batches | None = None, *, epochs: int = 1, **arguments: Any) -> Answer:
    trainer = make_trainer(**arguments)
    result = trainer.fit(data, validation=validation, epochs=epochs)
    answer = Answer(trainer, result, contents(trainer))
    trainer.close()
    return answer


def joined(batches: Sequence[Batch]) -> Batch:
    """The samples of several batches as one."""
    ids = {}
    for name in batches[0].ids:
        parts = [b.ids[name] for b in batches]
        offsets = None
        if parts[0].offsets is not None:
            lengths = np.concatenate([np.diff(p.offsets) for p in parts])
            offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        ids[name] = Jagged(np.concatenate([p.values for p in parts]), offsets)

    def stacked(name: str) -> Any:
        columns = [getattr(b, name) for b in batches]
        return None if columns[0] is None else np.concatenate(columns)

    return Batch(
        size=sum(b.size for b in batches),
        ids=ids,
        numeric=stacked("numeric"),
        labels=stacked("labels"),
        label_mask=stacked("label_mask"),
        weights=stacked("weights"),
    )


def assert_same(a: Answer, b: Answer, tolerance: float = 0.0) -> None:
    np.testing.assert_allclose(a.dense, b.dense, atol=tolerance, rtol=0)
    assert a.rows.keys() == b.rows.keys()
    for table, columns in a.rows.items():
        np.testing.assert_array_equal(columns[0], b.rows[table][0])
        for x, y in zip(columns[1:], b.rows[table][1:], strict=True):
            np.testing.assert_allclose(x, y, atol=tolerance, rtol=0)


def sgd(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)
