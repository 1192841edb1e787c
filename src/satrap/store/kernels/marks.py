"""One bit per slot."""

from __future__ import annotations

import numpy as np

from satrap.store.arrays import Bytes, Found, Inverse
from satrap.store.kernels.jit import kernel


@kernel
def mark(marks: Bytes, slots: Inverse) -> None:
    """Set the bits of slots (-1: none)."""
    for i in range(slots.shape[0]):
        slot = np.int64(slots[i])
        if slot >= 0:
            marks[slot >> 3] |= np.uint8(1 << (slot & 7))


@kernel
def unmark(marks: Bytes, slots: Inverse) -> None:
    """Clear the bits of slots (-1: none)."""
    for i in range(slots.shape[0]):
        slot = np.int64(slots[i])
        if slot >= 0:
            marks[slot >> 3] &= np.uint8(~np.uint8(1 << (slot & 7)))


@kernel
def marked(marks: Bytes, slots: Inverse) -> Found:
    """Return the bits of slots, bool[n]."""
    bits = np.empty(slots.shape[0], np.bool_)
    for i in range(slots.shape[0]):
        slot = np.int64(slots[i])
        bits[i] = (marks[slot >> 3] >> (slot & 7)) & 1
    return bits


@kernel
def assign(marks: Bytes, slots: Inverse, bits: Found) -> None:
    """Set the bits of slots to `bits`."""
    for i in range(slots.shape[0]):
        slot = np.int64(slots[i])
        bit = np.uint8(1 << (slot & 7))
        marks[slot >> 3] = np.uint8(marks[slot >> 3] | bit) if bits[i] else np.uint8(marks[slot >> 3] & ~bit)
