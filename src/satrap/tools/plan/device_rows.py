"""Whether the rows of a recipe's tables fit in the memory of a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from satrap.config import Recipe
from satrap.launch.placement import tables_and_network
from satrap.plan import Plan
from satrap.runtime.cuda import cuda_device
from satrap.runtime.formatting import size
from satrap.store.gpu.budget import INDEX_BYTES, row_bytes
from satrap.store.row_spec import plan as row_plan

SHARE = 0.5
"""Most of a device's memory for rows, as by default; the network and batches need the rest."""


@dataclass(frozen=True, slots=True)
class RowsOnDevice:
    """The rows of a worker, and a device.

    Args:
        bytes: weights, optimizer state and index of the rows of one worker.
        memory: bytes of the device.
        complete: whether all numbers of rows are known; else they were counted in some batches, and grow.
    """

    bytes: int
    memory: int
    complete: bool

    @property
    def fits(self) -> bool:
        """Whether the rows leave enough memory for the rest."""
        return self.bytes <= SHARE * self.memory

    def report(self) -> str:
        """Return the result as a line."""
        least = "" if self.complete else "at least "
        line = f"rows on a GPU: {least}{size(self.bytes)} of weights, state and index in {size(self.memory)}"
        if self.fits:
            known = "" if self.complete else " (give --rows or --run to count all of them)"
            return f"{line}: they fit{known}; set training.device and embedding.device to cuda"
        return f"{line}: more than {SHARE:.0%}, so use embedding.tier, more workers, or rows in RAM"

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments and `fits`."""
        return asdict(self) | {"fits": self.fits}


def rows_on_device(
    recipe: Recipe, placed: Plan, memory: int | None, notice: Callable[[str], None] = lambda _: None
) -> RowsOnDevice | None:
    """Return whether the rows of a plan's workload fit a device of each worker, None without a device.

    Args:
        recipe: the recipe.
        placed: its plan.
        memory: bytes of the device; None: the free memory of this machine's.
        notice: called with a line of text for the user.
    """
    if memory is None:
        cuda = cuda_device()
        if cuda is None:
            return None
        memory = cuda.free
    tables, _ = tables_and_network(recipe, recipe.schema(), notice, torch.device("meta"))
    each = {
        t.name: INDEX_BYTES + row_bytes(row_plan(t.optimizer, t.dim, t.dtype), t.dim)
        for t in tables
        if t.optimizer
    }
    workers = placed.topology.workers
    total = 0
    for load in placed.workload.tables:
        shares = 1 if placed.placements[load.name] == "replicated" else workers
        total += each[load.name] * -(-load.rows // shares)
    known = all(load.rows_from != "batches" for load in placed.workload.tables)
    return RowsOnDevice(total, memory, known)
