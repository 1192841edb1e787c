"""Serves one worker in an embedding worker: unique ids, lookup, pooling, and the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from satrap.embedding.module import Embeddings
from satrap.embedding.plan import BatchLookup, EmbeddingPlan
from satrap.errors import ConfigError, StoreError
from satrap.exchange.lookup import Array, Lookup, answered
from satrap.exchange.servers import ClientOptions, ServersExchange, Wire
from satrap.exchange.servers.config import ShardConfig, Worker
from satrap.exchange.wire.rows import pack_tensors, unpack_tensors
from satrap.optim import LARGEST
from satrap.rpc import Key
from satrap.rpc.wire.batches import unpack_batch
from satrap.rpc.wire.frames import Buffer, FrameError
from satrap.rpc.wire.text import pack_text, shortened
from satrap.schema import Schema

OPEN = 1024
"""Most lookups of one worker that wait for their update."""
IDS_PARTS = 3
"""Parts of a message that carry a batch's ids, after its text."""

Begun = tuple[Future[Any], Callable[[Any], list[Buffer]]]
"""A future, and the function that turns its result into the reply."""


@dataclass(frozen=True, slots=True)
class _Looked:
    """A lookup without its update yet: autograd leads from its tensors back to its rows."""

    lookup: Lookup[Array]
    leaves: Sequence[Tensor]
    outputs: Sequence[Tensor]


def done(result: Any = None) -> Future[Any]:
    """Return a completed future."""
    future: Future[Any] = Future()
    future.set_result(result)
    return future


class Pooler:
    """Serves the lookups and updates of one worker, in the order of its requests.

    Args:
        hello: the worker's schema, tables and schedule.
        shards: HOST:PORT of each shard.
        key: key of the cluster.

    Attributes:
        exchange: exchange with the shards, on behalf of the worker.
        rank: rank of the worker.
        samples: number of samples looked up so far.

    Raises:
        ConfigError: the hello is invalid, or names other shards.
        ExchangeError: a shard cannot be reached.
    """

    def __init__(self, hello: Mapping[str, Any], shards: Sequence[str], key: Key | None) -> None:
        try:
            schema, self._wire = Schema.from_dict(hello["schema"]), Wire(*hello["wire"])
            rows = ShardConfig.from_dict({**hello, "shard": 0, "epoch": 1})
            worker = Worker.from_dict({**hello, "forward": self._wire.forward})
            options = ClientOptions(key=key, deadline=float(hello["deadline"]))
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise ConfigError(
                f"an embedding worker received an invalid hello: {error}",
                why="the hello may be meant for a shard",
                fix="check the addresses of shards and embedding workers",
            ) from error
        if rows.map.shards != len(shards):
            raise ConfigError(
                f"the worker has {rows.map.shards} shards, but its embedding worker has {len(shards)}",
                fix="give both the same shards, in the same order",
            )
        named = {schema.table_of(name) for name in schema.categorical}
        if not named <= {table.name for table in rows.tables}:
            raise ConfigError("the hello of a worker has features without a table")
        self.rank = worker.id.rank
        self.exchange = ServersExchange(
            shards,
            rows.tables,
            store=rows.store,
            wire=self._wire,
            mode=str(hello["mode"]),
            worker=worker.id,
            options=options,
        )
        groups = [group for group in self.exchange.groups if named.intersection(group.tables)]
        self._plan = EmbeddingPlan(schema, groups)
        self._embeddings = Embeddings(self._plan, torch.device("cpu"))
        self._open: dict[int, _Looked] = {}
        self.samples = 0

    @property
    def open(self) -> int:
        """Number of lookups that wait for their update."""
        return len(self._open)

    def look_up(self, text: Mapping[str, Any], parts: Sequence[Buffer], *, create: bool) -> Begun:
        """Issue the lookup of a batch.

        Args:
            text: text of the message; `number` identifies the lookup, `replay`: rows follow the ids.
            parts: ids; with "replay" also rows, which replace the rows of the shards.
            create: as `Exchange.lookup`; without it, the lookup cannot be updated.

        Raises:
            FrameError, DataError, StoreError: an invalid batch, or too many lookups without an update.
        """
        if create and len(self._open) >= OPEN:
            raise StoreError(f"{OPEN} lookups wait for their update", fix="reduce training.staleness")
        batch = unpack_batch(dict(text), parts[:IDS_PARTS])
        ticket = self._plan.ticket(batch)
        if text.get("replay"):
            groups = zip(ticket.requests, self._plan.groups, strict=True)
            rows = unpack_tensors(parts[IDS_PARTS:], [(len(r.ids), group.dim) for r, group in groups])
            lookup = answered(ticket.requests, rows)
        else:
            lookup = self.exchange.lookup(ticket.requests, create=create)
        self.samples += batch.size
        number = _number(text) if create else None
        return lookup.rows, partial(self._pool, number, ticket, lookup)

    def _pool(
        self, number: int | None, ticket: BatchLookup, lookup: Lookup[Any], rows: Sequence[Array]
    ) -> list[Buffer]:
        with torch.set_grad_enabled(number is not None):
            leaves = self._embeddings.rows(rows)
            outputs = [block for _, block in self._embeddings.blocks(ticket, leaves)]
            outputs += [self._embeddings.unpooled(ticket, name, leaves) for name in self._plan.jagged]
        if number is not None:
            self._open[number] = _Looked(lookup, leaves, outputs)
        text = {"ratio": ticket.distinct_ratio, "staleness": self._staleness()}
        tensors = [output.detach().numpy() for output in outputs]
        return [pack_text(text), *pack_tensors(tensors, self._wire.forward)]

    def update(self, text: Mapping[str, Any], parts: Sequence[Buffer]) -> Begun:
        """Push the gradients of a lookup; without a number, take part in a step without gradients.

        Updates come in the order of their lookups. A skipped lookup never gets an update.

        Raises:
            StoreError: the lookup does not exist, or an earlier update was rejected.
            FrameError: the tensors have other shapes.
        """
        scale = text.get("lr_scale")
        if not isinstance(scale, int | float) or not abs(scale) <= LARGEST:
            raise FrameError(f"a request has an invalid lr_scale: {shortened(scale)}")
        if text.get("number") is None:
            self.exchange.apply(Lookup(()), [], lr_scale=scale)
            return done(), lambda _: []
        number = _number(text)
        looked = self._look_back(number)
        gradients = unpack_tensors(parts, [tuple(output.shape) for output in looked.outputs])
        pairs = zip(looked.outputs, map(torch.from_numpy, gradients), strict=True)
        # frozen tables have no gradients
        if reached := [pair for pair in pairs if pair[0].requires_grad]:
            torch.autograd.backward([output for output, _ in reached], [g for _, g in reached])
        for passed in [n for n in list(self._open) if n <= number]:  # copied: another thread adds to it
            del self._open[passed]
        rows = self._embeddings.gradients(looked.leaves)
        self.exchange.apply(looked.lookup, rows, lr_scale=scale)
        return done(), lambda _: []

    def recall(self, text: Mapping[str, Any]) -> Begun:
        """Return the rows of a lookup without its update yet, float32, in the order of its ids."""
        looked = self._look_back(_number(text))
        return done(), lambda _: [pack_text({}), *pack_tensors(looked.lookup.result(), "float32")]

    def flush(self) -> Begun:
        """Wait until all requests issued so far have been applied."""
        self.exchange.flush()
        return done({"staleness": self._staleness()}), lambda text: [pack_text(text)]

    def _staleness(self) -> dict[str, Mapping[int, int]]:
        traffic = self.exchange.telemetry.traffic()
        return {"own": traffic.own, "others": traffic.others}

    def _look_back(self, number: int) -> _Looked:
        if number not in self._open:
            raise StoreError(f"lookup {number} does not exist, or does not wait for an update")
        return self._open[number]


def _number(text: Mapping[str, Any]) -> int:
    number = text.get("number")
    if type(number) is not int:
        raise FrameError(f"a request has an invalid number: {shortened(number)}")
    return number
