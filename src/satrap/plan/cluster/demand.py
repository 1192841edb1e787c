"""What a model of a given number of parameters asks of a cluster."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from satrap.exchange.kernels import row_bytes
from satrap.plan.cost import ID_BYTES
from satrap.plan.workload import TableLoad, Workload
from satrap.store.directory import OVERHEAD

STATES_OF_DENSE = 4
"""Numbers kept for each weight of the network: itself, its gradient, and two of Adam."""
BACKWARD = 3
"""Operations of a training step per operation of the forward pass: one forward, two backward."""


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of one table at the size that is planned.

    Args:
        name: of the table.
        dim: weights per row.
        rows: how many.
        weights, state, index: bytes of all rows.
    """

    name: str
    dim: int
    rows: int
    weights: float
    state: float
    index: float

    @property
    def bytes(self) -> float:
        """Bytes of memory."""
        return self.weights + self.state + self.index


@dataclass(frozen=True, slots=True)
class Demand:
    """What a model asks for.

    Args:
        parts: the tables.
        ids: distinct ids per sample, in a batch of one worker, by table.
        wire: bytes per sample between a worker and the shards: ids, rows and gradients.
        vectors: bytes per sample between a worker and an embedding worker: pooled vectors, their gradients.
        forward_flop: floating-point operations of the network's forward pass, per sample.
        dense: weights of the network.
        batch_size: samples of a worker's batch, over which ids are distinct.
    """

    parts: tuple[Part, ...]
    ids: tuple[float, ...]
    wire: float
    vectors: float
    forward_flop: float
    dense: int
    batch_size: int

    @classmethod
    def of(cls, workload: Workload, parameters: float, forward_flop: float, dense: int) -> Demand:
        """Return the demand of a workload whose tables grow until they have this many parameters.

        All tables grow by the same factor. A batch still has as many distinct ids per sample as the batches
        that were counted; with more ids there may be a few more.

        Args:
            workload: counted for one worker, so that ids are distinct in its batch.
            parameters: of all tables together.
            forward_flop: see the class.
            dense: see the class.
        """
        known = sum(table.rows * table.dim for table in workload.tables)
        parts = tuple(_part(table, math.ceil(table.rows * parameters / known)) for table in workload.tables)
        ids = tuple(table.distinct / workload.batch_size for table in workload.tables)
        wire = sum(n * _bytes(table, workload) for n, table in zip(ids, workload.tables, strict=True))
        vectors = sum(_vectors(t, workload) * _numbers(t, workload) for t in workload.tables)
        return cls(parts, ids, wire, vectors, forward_flop, dense, workload.batch_size)

    @property
    def parameters(self) -> int:
        """Weights of all rows."""
        return sum(part.rows * part.dim for part in self.parts)

    @property
    def bytes(self) -> float:
        """Bytes of all rows in memory."""
        return sum(part.bytes for part in self.parts)

    def costs(self, seconds: Sequence[float]) -> float:
        """Return the processor seconds per sample, given those per id of each table."""
        return sum(n * each for n, each in zip(self.ids, seconds, strict=True))


def _part(table: TableLoad, rows: int) -> Part:
    return Part(
        table.name, table.dim, rows, rows * table.weight_bytes, rows * table.state_bytes, rows * OVERHEAD
    )


def _bytes(table: TableLoad, workload: Workload) -> float:
    return ID_BYTES + _numbers(table, workload)


def _numbers(table: TableLoad, workload: Workload) -> float:
    return float(sum(row_bytes(code, table.dim) for code in (workload.forward, workload.backward)))


def _vectors(table: TableLoad, workload: Workload) -> float:
    return table.pooled_features or table.ids / workload.batch_size
