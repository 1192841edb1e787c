"""Cost of a step for given placements: bytes, rows, memory, seconds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from satrap.embedding.pooled import bag_bytes, sends_less
from satrap.exchange.collective.placement import PLACEMENTS, deal
from satrap.exchange.kernels import row_bytes
from satrap.plan.topology import Topology
from satrap.plan.workload import TableLoad, Workload

ID_BYTES = 8
MESSAGES = 3
"""All-to-alls of a step: ids, rows and gradients."""

_SENT, _RECEIVED, _HELD, _MEMORY, _COMPUTE = slice(0, 3), slice(3, 6), 6, 7, 8
_NUMBERS = 9
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of a step for each worker. All arrays are float64[workers].

    Args:
        owners: table -> the worker that holds it, for table_wise tables.
        sent: bytes sent by a worker.
        received: bytes received by a worker.
        rows: rows held by a worker.
        memory: bytes of these rows and their index.
        seconds: time of a step's exchange at the slowest worker, without the network's computation.
    """

    owners: Mapping[str, int]
    sent: Floats
    received: Floats
    rows: Floats
    memory: Floats
    seconds: float

    @property
    def most_memory(self) -> float:
        """Bytes of rows at the worker with the most bytes."""
        return float(self.memory.max())


class PlacementCosts:
    """Computes the cost of placements.

    Bytes of a step, for W workers and a table with u unique ids in a batch; f and b are the bytes of one of
    its rows and gradients on the wire. Bytes that a worker sends to itself do not count.

    - row_wise: each worker sends (W-1)/W u (8 + b) to the holders, and as a holder (W-1)/W u f. Rows are
      spread by hash, so these are averages.
    - table_wise: all workers except the holder send u (8 + b); the holder sends (W-1) u f.
    - table_wise with `pooled`, for tables whose holder can pool all features, where pooling sends less, see
      `satrap.embedding.pooled.sends_less`: the other workers send 8 u + n b and the bytes that describe the
      pooling, the holder sends (W-1) n f, where n is batch size * features.
    - replicated: each worker sends (W-1) u (8 + b).

    Lookups and updates concern the unique ids of all workers: 1/W of them at each worker for row_wise, all
    at the holder for table_wise, all at each worker for replicated. Ids, rows and gradients are exchanged one
    after the other, so a worker is busy for its lookups and updates and, in each of the three exchanges, for
    the larger of its sent and received bytes. A step takes the busiest worker's time plus the latency of all
    messages.

    Args:
        workload: the tables and their load.
        topology: the workers.
        pooled: whether the holder of a table may pool, as in `sync` without `clip_norm`; default False.
    """

    def __init__(self, workload: Workload, topology: Topology, *, pooled: bool = False) -> None:
        self.workload, self.topology, self.pooled = workload, topology, pooled

    def of(self, placements: Mapping[str, str]) -> Cost:
        """Return the cost of placements, table -> one of `PLACEMENTS`.

        Each table_wise table goes to the least loaded worker, the most expensive table first.
        """
        shares = {name: self._shares[name, placement] for name, placement in placements.items()}
        whole = [name for name, placement in placements.items() if placement == "table_wise"]
        owners = deal({name: float(self._busy(shares[name][0])) for name in whole}, self.topology.workers, {})
        each = np.zeros((self.topology.workers, _NUMBERS))
        each += sum(others for _, others in shares.values())
        for name, rank in owners.items():
            holder, others = shares[name]
            each[rank] += holder - others
        messages = MESSAGES if self.topology.workers > 1 else 0
        return Cost(
            owners,
            sent=each[:, _SENT].sum(1),
            received=each[:, _RECEIVED].sum(1),
            rows=each[:, _HELD],
            memory=each[:, _MEMORY],
            seconds=float(self._busy(each).max() + messages * self.topology.latency),
        )

    def uniform(self, placement: str) -> Cost:
        """Return the cost of one placement for all tables."""
        return self.of({table.name: placement for table in self.workload.tables})

    def _busy(self, each: Floats) -> Floats:
        """Return the busy seconds of a worker, for each row of numbers."""
        largest = np.maximum(each[..., _SENT], each[..., _RECEIVED]).sum(-1)
        return np.asarray(each[..., _COMPUTE] + largest / self.topology.bandwidth)

    @cached_property
    def _shares(self) -> dict[tuple[str, str], tuple[Floats, Floats]]:
        """(table, placement) -> cost of the table (at its holder, at any other worker)."""
        return {
            (table.name, placement): self._share(table, placement)
            for table in self.workload.tables
            for placement in PLACEMENTS
        }

    def _share(self, table: TableLoad, placement: str) -> tuple[Floats, Floats]:
        workers, u = self.topology.workers, table.distinct
        ids, rows, gradients = self._bytes(table, placement)
        holder, others = np.zeros(_NUMBERS), np.zeros(_NUMBERS)
        match placement:
            case "row_wise":
                part = (workers - 1) / workers
                others[_SENT] = others[_RECEIVED] = part * ids, part * rows, part * gradients
                others[6:] = self._held(table, math.ceil(table.rows / workers), table.distinct_all / workers)
                holder = others
            case "table_wise":
                others[_SENT], others[_RECEIVED] = (ids, 0, gradients), (0, rows, 0)
                holder[_SENT] = 0, (workers - 1) * rows, 0
                holder[_RECEIVED] = (workers - 1) * ids, 0, (workers - 1) * gradients
                holder[6:] = self._held(table, table.rows, table.distinct_all)
            case "replicated":
                sent = (workers - 1) * u * ID_BYTES, 0, (workers - 1) * gradients
                others[_SENT] = others[_RECEIVED] = sent
                others[6:] = self._held(table, table.rows, table.distinct_all)
                holder = others
        return holder, others

    def _bytes(self, table: TableLoad, placement: str) -> tuple[float, float, float]:
        """Return the bytes of ids, rows and gradients between one worker and the holder of a whole table."""
        load, ids, count = self.workload, table.distinct * ID_BYTES, table.distinct
        forward, backward = (row_bytes(code, table.dim) for code in (load.forward, load.backward))
        if placement == "table_wise" and self.pooled and table.pooled_features:
            vectors = load.batch_size * table.pooled_features
            pooling_bytes = bag_bytes(table.ids, vectors + table.pooled_features)
            if sends_less(table.distinct, vectors, forward + backward, pooling_bytes):
                ids, count = ids + pooling_bytes, vectors
        return ids, count * forward, count * backward

    def _held(self, table: TableLoad, rows: int, merged: float) -> tuple[float, float, float]:
        """Return rows, their bytes, and the seconds for `merged` unique ids of a step."""
        seconds = self.topology.rates_of(table.dim).seconds(merged, merged)
        return rows, rows * table.row_bytes, seconds
