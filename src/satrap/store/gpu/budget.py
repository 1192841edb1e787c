"""How many rows fit in the memory of a device, and in which steps their index grows."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext, suppress

import torch

from satrap.errors import ConfigError
from satrap.store.gpu.index import MOST_ROWS, DeviceIndex
from satrap.store.kernels.formats import Float32
from satrap.store.memory.directory import Budget
from satrap.store.row_spec import RowSpec, UpdateRule

ALIGNED = 16
"""Bytes to which rows and their parts are aligned: the widest load of a thread."""
INDEX_BYTES = 24
"""Most bytes per row in addition to weights and state. A full index takes 20, with several tables 22.5;
growth from a 16th of its size needs both sizes for a moment."""
GROWTH = 16
SMALLEST = 1 << 16
"""Rows of the smallest index that is made to grow."""
AHEAD = 8
"""Further requests of the same size that an index has room for when it has grown. The host learns the number
of rows some requests later, so this keeps it from counting them again and again."""


def part_bytes(plan: UpdateRule, dim: int) -> tuple[int, int]:
    """Return the bytes of a row's weights, and of each of its state vectors, with their padding."""
    item = 4 if plan.format is Float32 else 2
    weights, vector = (-(-size // ALIGNED) * ALIGNED for size in (item * dim, 4 * dim))
    return weights, vector


def row_bytes(plan: UpdateRule, dim: int) -> int:
    """Return the bytes of a row on a device: weights and state."""
    weights, vector = part_bytes(plan, dim)
    return weights + vector * (plan.layout.state // dim) + 4 * plan.layout.scalar


def device_budget(memory: int, kind: RowSpec) -> Budget:
    """Return how many rows fit, with their state and index, in `memory` bytes of a device.

    Raises:
        ConfigError: no row fits.
    """
    each = row_bytes(kind.plan, kind.dim) + INDEX_BYTES
    rows = min(memory // each, MOST_ROWS)
    if rows < 1:
        raise ConfigError(
            f"a memory budget of {memory} bytes is too small for one row",
            where=f"group of {len(kind.tables)} tables with {each} bytes per row on a device",
            fix=f"give this group at least {each} bytes",
        )
    return Budget(rows, rows * INDEX_BYTES)


def index_sizes(most: int) -> list[int]:
    """Return the sizes in rows, ascending, through which the index of at most `most` rows grows."""
    sizes = [most]
    while sizes[0] >= GROWTH * SMALLEST:
        sizes.insert(0, sizes[0] // GROWTH)
    return sizes


class IndexRoom:
    """Lets an index grow before its rows fill it.

    Args:
        index: the index, of the first size.
        sizes: those it grows through, in rows, ascending.

    Attributes:
        asked: positions of all requests so far.
    """

    def __init__(self, index: DeviceIndex, sizes: Sequence[int]) -> None:
        self._index, self._sizes = index, sizes
        self.asked = 0
        self._old = 0  # positions that certainly made no row, at least

    def ask(self, positions: int) -> None:
        """Let the index grow, unless it has room for a request even if all of its ids are new.

        The host knows how many slots were used after some earlier request, and how many positions were asked
        for since. Only if these could fill the index, it waits to count the rows.

        Raises:
            torch.OutOfMemoryError: the ids might not fit, and the device has no memory for a larger index.
        """
        index, most = self._index, self._sizes[-1]
        self.asked += positions
        if index.rows == most or self.asked - self._old <= index.rows:
            return
        self.learn(index.slots, self.asked - positions)
        needed = self.asked - self._old
        ahead = needed + AHEAD * positions
        if ahead > index.rows:
            fits = needed <= index.rows  # growth can wait, and is tried again
            with suppress(torch.OutOfMemoryError) if fits else nullcontext():
                index.grow(next((size for size in self._sizes if size >= ahead), most))

    def learn(self, used: int, asked: int) -> None:
        """Note that `used` slots were in use when `asked` had this value."""
        self._old = max(self._old, asked - used)
