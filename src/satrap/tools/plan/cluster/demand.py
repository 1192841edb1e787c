"""Resource demand of a model with a given number of parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from satrap.errors import ConfigError
from satrap.exchange.kernels import row_bytes
from satrap.plan.cost import ID_BYTES
from satrap.plan.workload import TableLoad, Workload
from satrap.store.memory.directory import OVERHEAD

STATES_OF_DENSE = 4
"""Numbers stored per weight of the network: weight, gradient, and two of Adam."""
BACKWARD = 3
"""Operations of a training step per operation of the forward pass: 1 forward, 2 backward."""


@dataclass(frozen=True, slots=True)
class TableDemand:
    """The rows of one table at the planned size.

    Args:
        name: name of the table.
        dim: weights per row.
        rows: number of rows.
        weights, state, index: bytes of all rows.
        full: whether the table has reached its maximum number of rows, default False.
    """

    name: str
    dim: int
    rows: int
    weights: float
    state: float
    index: float
    full: bool = False

    @property
    def bytes(self) -> float:
        """Memory in bytes."""
        return self.weights + self.state + self.index


@dataclass(frozen=True, slots=True)
class Demand:
    """Resource demand of a model.

    Args:
        parts: the tables.
        ids: unique ids per sample, in a batch of one worker, by table.
        wire: bytes per sample between a worker and the shards: ids, rows and gradients.
        vectors: bytes per sample between a worker and an embedding worker: pooled vectors, their gradients.
        forward_flop: floating-point operations of the network's forward pass, per sample.
        dense: number of weights of the network.
        batch_size: samples of a worker's batch, within which ids are unique.
    """

    parts: tuple[TableDemand, ...]
    ids: tuple[float, ...]
    wire: float
    vectors: float
    forward_flop: float
    dense: int
    batch_size: int

    @classmethod
    def of(cls, workload: Workload, parameters: float, forward_flop: float, dense: int) -> Demand:
        """Return the demand of a workload whose tables grow to this many parameters.

        All tables grow by the same factor, but not beyond their `most` rows. The unique ids per sample of a
        batch are assumed constant; with more ids there may be slightly more.

        Args:
            workload: counted for one worker, so that ids are unique within its batch.
            parameters: number of parameters of all tables.
            forward_flop: see the class.
            dense: see the class.

        Raises:
            ConfigError: the tables cannot have this many parameters.
        """
        factor = _factor(workload.tables, parameters)
        parts = tuple(_part(table, factor) for table in workload.tables)
        ids = tuple(table.distinct / workload.batch_size for table in workload.tables)
        wire = sum(n * _bytes(table, workload) for n, table in zip(ids, workload.tables, strict=True))
        vectors = sum(_vectors(t, workload) * _numbers(t, workload) for t in workload.tables)
        return cls(parts, ids, wire, vectors, forward_flop, dense, workload.batch_size)

    @property
    def parameters(self) -> int:
        """Number of weights of all rows."""
        return sum(part.rows * part.dim for part in self.parts)

    @property
    def bytes(self) -> float:
        """Bytes of all rows in memory."""
        return sum(part.bytes for part in self.parts)

    def costs(self, seconds: Sequence[float]) -> float:
        """Return the CPU seconds per sample, given the CPU seconds per id of each table."""
        return sum(n * each for n, each in zip(self.ids, seconds, strict=True))


def _factor(tables: Sequence[TableLoad], parameters: float) -> float:
    """Return the factor by which tables grow to this many parameters; full tables stop growing."""
    growing, remaining = list(tables), parameters
    while weights := sum(table.rows * table.dim for table in growing):
        factor = remaining / weights
        full = [table for table in growing if table.most is not None and table.rows * factor > table.most]
        if not full:
            return factor
        growing = [table for table in growing if table not in full]
        remaining -= sum((table.most or 0) * table.dim for table in full)
    raise ConfigError(
        f"the tables cannot grow to {parameters:,.0f} parameters: together they have at most "
        f"{parameters - remaining:,.0f}",
        why="buckets, boundaries, vocabularies, parts of times or columns of two values limit every table",
        fix="reduce --parameters, or remove buckets or vocabulary from a feature",
    )


def _part(table: TableLoad, factor: float) -> TableDemand:
    rows, most = math.ceil(table.rows * factor), table.most
    full = most is not None and rows >= most
    if most is not None and full:
        rows = most
    return TableDemand(
        table.name,
        table.dim,
        rows,
        weights=rows * table.weight_bytes,
        state=rows * table.state_bytes,
        index=rows * OVERHEAD,
        full=full,
    )


def _bytes(table: TableLoad, workload: Workload) -> float:
    return ID_BYTES + _numbers(table, workload)


def _numbers(table: TableLoad, workload: Workload) -> float:
    return float(sum(row_bytes(code, table.dim) for code in (workload.forward, workload.backward)))


def _vectors(table: TableLoad, workload: Workload) -> float:
    return table.pooled_features or table.ids / workload.batch_size
