"""What a step costs if tables are placed in a given way: bytes, rows, memory, seconds."""

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
    """What each worker has to do in a step. All arrays are float64[workers].

    Args:
        owners: table -> the worker that holds it, for tables that are placed table_wise.
        sent: bytes that leave a worker.
        received: bytes that reach it.
        rows: rows that it holds.
        memory: bytes of these rows and their index.
        seconds: of a step's exchange, by the slowest worker. The network's own time is not part of it.
    """

    owners: Mapping[str, int]
    sent: Floats
    received: Floats
    rows: Floats
    memory: Floats
    seconds: float

    @property
    def most_memory(self) -> float:
        """Bytes of rows at the worker that holds most."""
        return float(self.memory.max())


class Costs:
    """Computes what placements cost.

    Bytes of a step, for W workers and a table with u distinct ids in a batch; f and b are the bytes of one of
    its rows and gradients on their way. What a worker sends itself does not count.

    - row_wise: each worker sends (W-1)/W u (8 + b) to the holders, and as holder (W-1)/W u f. Rows are
      spread by hash, so these are averages.
    - table_wise: all but the holder send u (8 + b); the holder sends (W-1) u f.
    - table_wise with `pooled`, for tables whose holder can pool all features, where that sends less, see
      `satrap.embedding.pooled.sends_less`: all others send 8 u + n b and the bytes that say how to pool, the
      holder sends (W-1) n f, where n is batch size * features.
    - replicated: each worker sends (W-1) u (8 + b).

    Lookups and updates are those of the distinct ids of all workers: a W-th at each for row_wise, all at the
    holder for table_wise, all at each for replicated. Ids, rows and gradients travel one after the other, so
    a worker is busy for its lookups and updates and, for each of the three, for the larger of what it sends
    and receives. The busiest worker's time and the latency of all messages make the step.

    Args:
        workload: the tables, and what is asked of them.
        topology: the workers.
        pooled: the holder of a table may pool, default False; it may in `sync` without `clip_norm`.
    """

    def __init__(self, workload: Workload, topology: Topology, *, pooled: bool = False) -> None:
        self.workload, self.topology, self.pooled = workload, topology, pooled

    def of(self, placements: Mapping[str, str]) -> Cost:
        """Return the cost of placements, one of `PLACEMENTS` for each table.

        Tables that one worker holds are dealt: the one that takes longest first, to who has least to do.
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
        """Return the seconds a worker is busy, for each row of numbers."""
        largest = np.maximum(each[..., _SENT], each[..., _RECEIVED]).sum(-1)
        return np.asarray(each[..., _COMPUTE] + largest / self.topology.bandwidth)

    @cached_property
    def _shares(self) -> dict[tuple[str, str], tuple[Floats, Floats]]:
        """What a table costs (its holder, any other worker), by table and placement."""
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
        """Return the bytes of ids, rows and gradients between one worker and a holder of the whole table."""
        load, ids, count = self.workload, table.distinct * ID_BYTES, table.distinct
        forward, backward = (row_bytes(code, table.dim) for code in (load.forward, load.backward))
        if placement == "table_wise" and self.pooled and table.pooled_features:
            vectors = load.batch_size * table.pooled_features
            beside = bag_bytes(table.ids, vectors + table.pooled_features)
            if sends_less(table.distinct, vectors, forward + backward, beside):
                ids, count = ids + beside, vectors
        return ids, count * forward, count * backward

    def _held(self, table: TableLoad, rows: int, merged: float) -> tuple[float, float, float]:
        """Return rows, their bytes, and the seconds for `merged` distinct ids of a step."""
        seconds = self.topology.rates_of(table.dim).seconds(merged, merged)
        return rows, rows * table.row_bytes, seconds
