"""Load of embedding tables, counted in training batches."""

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
from satrap.store.memory.directory import PLAIN_OVERHEAD
from satrap.store.row_spec import plan as row_plan

Ids = npt.NDArray[np.uint64]
TIMES = {"hour": 24, "weekday": 7}
"""Part of a time -> number of its values."""
BINARY = 2
"""Most unique values of a table that is assumed to be a yes/no column and never to grow."""


@dataclass(frozen=True, slots=True)
class TableLoad:
    """One table and its average load per step.

    Args:
        name: name of the table.
        dim: weights per row.
        weight_bytes: bytes of a row's weights.
        state_bytes: bytes of a row's optimizer state.
        rows: number of rows.
        ids: ids in the batch of one worker, including duplicates.
        distinct: unique ids in the batch of one worker.
        distinct_all: unique ids in the batches of all workers.
        pooled_features: features that use the table, if its holder can pool all of them; else 0, the default.
        rows_from: "batches": `rows` were counted in the batches, a lower bound; "run" or "given".
        most: maximum number of rows; None, the default: unknown.
        late: rows that only the second half of the counted steps have; default 0.
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
    late: int = 0

    @property
    def row_bytes(self) -> int:
        """Bytes of a row including its index entry."""
        return self.weight_bytes + self.state_bytes + PLAIN_OVERHEAD


@dataclass(frozen=True, slots=True)
class Workload:
    """Load of all tables; made by `measure`.

    Args:
        tables: in order of first use.
        batch_size: samples of one worker in a step.
        steps: number of averaged steps; each has one batch of every worker.
        forward: code of the number format of rows between workers, default FLOAT16.
        backward: code of the number format of gradients, default BFLOAT16.
    """

    tables: tuple[TableLoad, ...]
    batch_size: int
    steps: int
    forward: int = FLOAT16
    backward: int = BFLOAT16

    def with_rows(self, rows: Mapping[str, int], origin: str) -> Workload:
        """Return the same workload with other numbers of rows; `origin`: "run" or "given".

        Raises:
            ConfigError: an unknown table, or a number below 1.
        """
        names = [table.name for table in self.tables]
        for name, count in rows.items():
            if name not in names or count < 1:
                unknown = name not in names
                what = f"unknown table {name!r}" if unknown else f"table {name!r} cannot have {count} rows"
                fix = f"give a number >= 1 for one of the tables {', '.join(names)}"
                raise ConfigError(what, where="numbers of rows", fix=fix)
        sized = (
            _sized(table, rows[table.name], origin) if table.name in rows else table for table in self.tables
        )
        return replace(self, tables=tuple(sized))


def _sized(table: TableLoad, rows: int, origin: str) -> TableLoad:
    most = None if table.most is not None and rows > table.most else table.most
    return replace(table, rows=rows, rows_from=origin, most=most, late=0)


def measure(
    schema: Schema,
    tables: Sequence[Table],
    batches: Iterable[Batch],
    workers: int,
    *,
    forward: int = FLOAT16,
    backward: int = BFLOAT16,
) -> Workload:
    """Count the load of tables in batches.

    Args:
        schema: schema of the batches.
        tables: the tables of the schema, each with an optimizer.
        batches: every `workers` consecutive batches make a step. A shorter last batch is skipped unless it is
            the only step.
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
            f"the training rows give fewer than {workers} batches, one for each worker",
            why="a step needs one batch from every worker",
            fix="use fewer workers, or reduce data.batch_size",
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
    """Return the number of features that the holder of their table can pool; 0 unless it can pool all."""
    return len(users) if all(feature.pooling in POOLS for feature in users) else 0


def _most(users: Sequence[Categorical], seen: Ids) -> int | None:
    """Return the maximum number of rows for the features of a table, None if unlimited."""
    limits = [_values(feature) for feature in users]
    if None not in limits:
        return sum(limit + 1 for limit in limits if limit is not None)  # missing values share a row
    values = np.count_nonzero(seen != MISSING_ID)
    return max(len(seen), 1) if values <= BINARY else None


def _values(feature: Categorical) -> int | None:
    """Return the maximum number of ids of a feature without missing values, None if unlimited."""
    limits = [feature.buckets]
    if feature.boundaries is not None:
        limits.append(len(feature.boundaries) + 1)
    elif feature.time is not None:
        limits.append(TIMES[feature.time])
    if feature.vocabulary is not None:
        limits.append(len(feature.vocabulary) + 1)  # all other values share one id
    return min((limit for limit in limits if limit is not None), default=None)


class _Counter:
    """Counts the ids of one table."""

    def __init__(self) -> None:
        self._ids = self._distinct = self._distinct_all = 0
        self._seen = np.empty(0, np.uint64)
        self._rows = [0]  # after each step

    def add(self, step: Sequence[Ids], ids: int) -> None:
        """Count a step: the unique ids of each worker, and the number of all ids."""
        together = np.unique(np.concatenate(step))
        self._ids += ids
        self._distinct += sum(map(len, step))
        self._distinct_all += len(together)
        self._seen = np.union1d(self._seen, together)
        self._rows.append(len(self._seen))

    def load(self, table: Table, schema: Schema, steps: int, workers: int) -> TableLoad:
        """Return the averages over the counted steps."""
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
            late=len(self._seen) - self._rows[steps // 2],
        )
