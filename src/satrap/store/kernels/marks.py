"""One bit per slot."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from satrap.store.kernels.jit import kernel


@kernel
def mark(marks: npt.NDArray[np.uint8], slots: npt.NDArray[np.int32]) -> None:
    """Set the bits of slots (-1: none)."""
    for i in range(slots.shape[0]):
        slot = np.int64(slots[i])
        if slot >= 0:
            marks[slot >> 3] |= np.uint8(1 << (slot & 7))


@kernel
def unmark(marks: npt.NDArray[np.uint8], slots: npt.NDArray[np.int32]) -> None:
    """Clear the bits of slots (-1: none)."""
    for i in range(slots.shape[0]):
        slot = np.int64(slots[i])
        if slot >= 0:
            marks[slot >> 3] &= np.uint8(~np.uint8(1 << (slot & 7)))


@kernel
def marked(marks: npt.NDArray[np.uint8], slots: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    """Return the bits of slots, bool[n]."""
    bits = np.empty(slots.shape[0], np.bool_)
    for i in range(slots.shape[0]):
        slot = np.int64(slots[i])
        bits[i] = (marks[slot >> 3] >> (slot & 7)) & 1
    return bits


@kernel
def assign(marks: npt.NDArray[np.uint8], slots: npt.NDArray[np.int32], bits: npt.NDArray[np.bool_]) -> None:
    """Set the bits of slots to `bits`."""
    for i in range(slots.shape[0]):
        slot = np.int64(slots[i])
        bit = np.uint8(1 << (slot & 7))
        marks[slot >> 3] = np.uint8(marks[slot >> 3] | bit) if bits[i] else np.uint8(marks[slot >> 3] & ~bit)
