"""What the batches of a training ask of its tables, counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from satrap.batch import Batch
from satrap.embedding import EmbeddingPlan
from satrap.embedding.pooled import POOLS
from satrap.errors import ConfigError, DataError
from satrap.exchange import TableGroup
from satrap.exchange.kernels import BFLOAT16, FLOAT16
from satrap.schema import MISSING_ID, Categorical, Schema, Table
from satrap.store.directory import PLAIN_OVERHEAD
from satrap.store.steps import plan as row_plan

Ids = npt.NDArray[np.uint64]
TIMES = {"hour": 24, "weekday": 7}
"""Part of a time -> how many there are."""
BINARY = 2
"""Different values up to which a table is taken for that of a yes or no, which never has more."""


@dataclass(frozen=True, slots=True)
class TableLoad:
    """One table, and what a step asks of it on average.

    Args:
        name: of the table.
        dim: weights per row.
        weight_bytes: bytes of a row's weights.
        state_bytes: bytes of a row's optimizer state.
        rows: number of rows.
        ids: ids in the batch of one worker, duplicates included.
        distinct: distinct ids in the batch of one worker.
        distinct_all: distinct ids in the batches of all workers together.
        pooled_features: features that use the table, if its holder can pool all of them; else 0, the default.
        rows_from: "batches": `rows` is the number that the batches held, a lower bound; "run" or "given".
        most: most rows there can ever be; None, the default: no limit is known.
    """

    name: str
    dim: int
    weight_bytes: int
    state_bytes: int
    rows: int
    ids: float
    distinct: float
    distinct_all: float
    pooled_features: int = 0
    rows_from: str = "batches"
    most: int | None = None

    @property
    def row_bytes(self) -> int:
        """Bytes of a row with its place in the index."""
        return self.weight_bytes + self.state_bytes + PLAIN_OVERHEAD


@dataclass(frozen=True, slots=True)
class Workload:
    """What all tables are asked for; made by `measure`.

    Args:
        tables: by order of first use.
        batch_size: samples of one worker in a step.
        steps: steps that the averages are over; each is a batch of every worker.
        forward: code of the number format of rows between workers, default FLOAT16.
        backward: code of that of gradients, default BFLOAT16.
    """

    tables: tuple[TableLoad, ...]
    batch_size: int
    steps: int
    forward: int = FLOAT16
    backward: int = BFLOAT16

    def with_rows(self, rows: Mapping[str, int], origin: str) -> Workload:
        """Return the same with other numbers of rows; `origin`: "run" or "given".

        Raises:
            ConfigError: there is no such table, or a number below 1.
        """
        names = [table.name for table in self.tables]
        for name, count in rows.items():
            if name not in names or count < 1:
                what = f"there is no table {name!r}" if name not in names else f"table {name!r}: {count} rows"
                raise ConfigError(what, where="numbers of rows", fix=f"tables: {', '.join(names)}")
        known = (
            _sized(table, rows[table.name], origin) if table.name in rows else table for table in self.tables
        )
        return replace(self, tables=tuple(known))


def _sized(table: TableLoad, rows: int, origin: str) -> TableLoad:
    most = None if table.most is not None and rows > table.most else table.most
    return replace(table, rows=rows, rows_from=origin, most=most)


def measure(
    schema: Schema,
    tables: Sequence[Table],
    batches: Iterable[Batch],
    workers: int,
    *,
    forward: int = FLOAT16,
    backward: int = BFLOAT16,
) -> Workload:
    """Count what batches ask of tables.

    Args:
        schema: of the batches.
        tables: those of the schema, each with an optimizer.
        batches: `workers` in a row make a step. A shorter last batch is left out unless it is the only step.
        workers: number of workers.
        forward: see `Workload`, default FLOAT16.
        backward: see `Workload`, default BFLOAT16.

    Raises:
        DataError: there are fewer batches than workers.
    """
    groups = [TableGroup(i, (table.name,), table.dim) for i, table in enumerate(tables)]
    plan, counters, size, steps = EmbeddingPlan(schema, groups), [_Counter() for _ in tables], 0, 0
    for step in _steps(batches, workers):
        size, steps = max(size, step[0].size), steps + 1
        tickets = [plan.ticket(batch) for batch in step]
        for i, counter in enumerate(counters):
            counter.add([t.requests[i].ids for t in tickets], sum(len(t.inverses[i]) for t in tickets))
    if not steps:
        raise DataError(
            f"the training rows do not make a batch for each of {workers} workers",
            why="a step takes one batch of every worker",
            fix="use fewer workers, or a smaller data.batch_size",
        )
    loads = (c.load(t, schema, steps, workers) for c, t in zip(counters, tables, strict=True))
    return Workload(tuple(loads), size, steps, forward, backward)


def _steps(batches: Iterable[Batch], workers: int) -> Iterator[list[Batch]]:
    step: list[Batch] = []
    full = 0
    for batch in batches:
        step.append(batch)
        if len(step) == workers:
            if full in (0, batch.size):
                yield step
            full, step = full or step[0].size, []


def _users(schema: Schema, table: Table) -> list[Categorical]:
    return [f for name, f in schema.categorical.items() if schema.table_of(name) == table.name]


def _pooled(users: Sequence[Categorical]) -> int:
    """Return how many features a table could be pooled for at who holds it; 0 if one of them cannot be."""
    return len(users) if all(feature.pooling in POOLS for feature in users) else 0


def _most(users: Sequence[Categorical], seen: Ids) -> int | None:
    """Return the most rows that the features of a table can ask for, None if any number."""
    limits = [_values(feature) for feature in users]
    if None not in limits:
        return sum(limit + 1 for limit in limits if limit is not None)  # missing values share a row
    values = np.count_nonzero(seen != MISSING_ID)
    return max(len(seen), 1) if values <= BINARY else None


def _values(feature: Categorical) -> int | None:
    """Return how many ids the values of a feature can have, None if any number; missing ones not counted."""
    limits = [feature.buckets]
    if feature.boundaries is not None:
        limits.append(len(feature.boundaries) + 1)
    elif feature.time is not None:
        limits.append(TIMES[feature.time])
    if feature.vocabulary is not None:
        limits.append(len(feature.vocabulary) + 1)  # all others share one
    return min((limit for limit in limits if limit is not None), default=None)


class _Counter:
    """Counts the ids of one table."""

    def __init__(self) -> None:
        self._ids = self._distinct = self._distinct_all = 0
        self._seen = np.empty(0, np.uint64)

    def add(self, step: Sequence[Ids], ids: int) -> None:
        """Count a step: the distinct ids of each worker, and the number of all ids."""
        together = np.unique(np.concatenate(step))
        self._ids += ids
        self._distinct += sum(map(len, step))
        self._distinct_all += len(together)
        self._seen = np.union1d(self._seen, together)

    def load(self, table: Table, schema: Schema, steps: int, workers: int) -> TableLoad:
        """Return the averages over what was counted."""
        assert table.optimizer is not None
        users = _users(schema, table)
        row = row_plan(table.optimizer, table.dim, table.dtype)
        return TableLoad(
            table.name,
            table.dim,
            weight_bytes=row.weights,
            state_bytes=row.row_bytes - row.weights,
            rows=len(self._seen),
            ids=self._ids / steps / workers,
            distinct=self._distinct / steps / workers,
            distinct_all=self._distinct_all / steps,
            pooled_features=_pooled(users),
            most=_most(users, self._seen),
        )
