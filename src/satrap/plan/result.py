"""A plan: the placement of every table, its cost, and the cost of alternatives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from satrap.plan.cost import Cost
from satrap.plan.topology import Topology
from satrap.plan.workload import TableLoad, Workload
from satrap.runtime.formatting import size


@dataclass(frozen=True, slots=True)
class Plan:
    """The placements chosen for a workload; made by `place`.

    Args:
        workload: the tables and their load.
        topology: the workers.
        placements: table -> "row_wise", "table_wise" or "replicated".
        cost: cost of a step.
        alone: table -> cost of this table alone.
        uniform: placement -> cost if all tables had it; empty if there is no choice.
        instead: table -> other placement -> cost if only this table had it; empty if there is no choice.
    """

    workload: Workload
    topology: Topology
    placements: Mapping[str, str]
    cost: Cost
    alone: Mapping[str, Cost]
    uniform: Mapping[str, Cost]
    instead: Mapping[str, Mapping[str, Cost]]

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain data: bytes, seconds and counts."""
        t = self.topology
        return {
            "workers": t.workers,
            "batch_size": self.workload.batch_size,
            "steps_counted": self.workload.steps,
            "memory": {"bytes_per_worker": t.memory, "from": t.memory_from},
            "speeds": {
                "bytes_per_second": t.bandwidth,
                "latency_seconds": t.latency,
                "rows_per_second": {
                    table.dim: {"lookups": rates.lookups, "updates": rates.updates}
                    for table in self.workload.tables
                    for rates in (t.rates_of(table.dim),)
                },
                "from": t.speeds_from,
            },
            "tables": {table.name: self._table(table) for table in self.workload.tables},
            "planned": self._plain(self.cost),
            "uniform": {placement: self._plain(cost) for placement, cost in self.uniform.items()},
        }

    def _table(self, table: TableLoad) -> dict[str, Any]:
        return {
            "placement": self.placements[table.name],
            "worker": self.cost.owners.get(table.name),
            "dim": table.dim,
            "rows": table.rows,
            "rows_from": table.rows_from,
            "row_bytes": table.row_bytes,
            "ids_per_sample": table.ids / self.workload.batch_size,
            "distinct_ids": {"worker": table.distinct, "step": table.distinct_all},
            "instead": {placement: self._plain(c) for placement, c in self._instead(table.name).items()},
        }

    def _instead(self, name: str) -> Mapping[str, Cost]:
        return self.instead.get(name, {})

    def _plain(self, cost: Cost) -> dict[str, Any]:
        return {
            "seconds": cost.seconds,
            "sent_bytes": cost.sent.tolist(),
            "received_bytes": cost.received.tolist(),
            "memory_bytes": cost.memory.tolist(),
            "fits": cost.most_memory <= self.topology.memory,
        }

    def report(self) -> str:
        """Return the plan as text for a terminal."""
        load, t = self.workload, self.topology
        head = ["table", "placement", "dim", "rows", "ids/step", "KiB/step", "memory", "instead"]
        body = [head, *map(self._line, load.tables)]
        if t.workers == 1:  # no traffic and no alternatives
            body = [[cells[i] for i in (0, 2, 3, 4, 6)] for cells in body]
        lines = [
            f"{_count(len(load.tables), 'table')}, {_count(t.workers, 'worker')}; counted over "
            f"{_count(load.steps, 'step')} of {t.workers} x {load.batch_size:,} samples",
            "",
            *columns(body),
            "",
        ]
        if t.workers == 1:
            lines.append(f"one worker holds all rows, so there is no choice; {self._needs()}")
        elif t.bounded_by:
            lines.append(f"with embedding.{t.bounded_by}, tables must be row_wise; {self._needs()}")
        else:
            lines += self._comparison()
        return "\n".join([*lines, "", *self._notes()])

    def _needs(self) -> str:
        needed, memory = self.cost.most_memory, self.topology.memory
        return f"the rows need {size(needed)} at a worker, which has {size(memory)}"

    def _rates(self) -> str:
        rates = {table.dim: self.topology.rates_of(table.dim) for table in self.workload.tables}
        return "; ".join(
            f"{rates[dim].lookups / 1e6:.0f}, {rates[dim].updates / 1e6:.0f} (dim {dim})"
            for dim in sorted(rates)
        )

    def _line(self, table: TableLoad) -> list[str]:
        owner, cost = self.cost.owners.get(table.name), self.alone[table.name]
        return [
            table.name,
            self.placements[table.name] + ("" if owner is None else f" ({owner})"),
            str(table.dim),
            f"{'>= ' if table.rows_from == 'batches' else ''}{table.rows:,}",
            f"{table.distinct_all:,.0f}",
            _kib(cost),
            size(cost.most_memory),
            ", ".join(f"{name} {self._change(other)}" for name, other in self._instead(table.name).items()),
        ]

    def _change(self, other: Cost) -> str:
        """Return the difference of another cost to the plan's cost."""
        if other.most_memory > self.topology.memory:
            return "no room"
        return f"{1000 * (other.seconds - self.cost.seconds):+.2f} ms"

    def _comparison(self) -> list[str]:
        rows = [["all tables", "time of a step", "KiB/step", "memory", ""]]
        for name, cost in {"as planned": self.cost, **self.uniform}.items():
            change = "" if cost is self.cost else self._change(cost)
            rows.append([name, f"{1000 * cost.seconds:.2f} ms", _kib(cost), size(cost.most_memory), change])
        return columns(rows)

    def _notes(self) -> list[str]:
        t = self.topology
        notes = [
            "ids/step: unique ids of all workers"
            + ("; KiB/step: sent by the worker that sends most" if t.workers > 1 else ""),
            f"memory: rows and index at the fullest worker; workers have {size(t.memory)}, {t.memory_from}",
        ]
        if self.uniform:
            notes += [
                "time of a step: lookups, updates and messages; instead: change if only this table is moved",
                f"speeds, {t.speeds_from}: {t.bandwidth / 1e9:.2f} GB/s, {1e6 * t.latency:.0f} us/message; "
                f"million lookups, updates/s: {self._rates()}",
            ]
        if any(table.rows_from == "batches" for table in self.workload.tables):
            notes.append("rows >=: counted in these batches, a lower bound; use --run DIR or --rows TABLE=N")
        return [f"  {note}" for note in notes]


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _kib(cost: Cost) -> str:
    return f"{cost.sent.max() / 1024:,.1f}"


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return lines with aligned columns: text to the left, numbers to the right.

    A column is numeric, except the first one, if its last cell begins with a digit or `>=`.
    """
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    left = [i == 0 or not cell.removeprefix(">= ")[:1].isdigit() for i, cell in enumerate(rows[-1])]
    return [
        "  ".join(
            cell.ljust(width) if to_left else cell.rjust(width)
            for cell, width, to_left in zip(row, widths, left, strict=True)
        ).rstrip()
        for row in rows
    ]
