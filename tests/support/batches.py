"""What it means that two batches are the same."""

from __future__ import annotations

from typing import Any

from satrap.batch import Batch


def assert_same(mine: Batch, theirs: Batch) -> None:
    """Compare all fields of two batches to the bit."""
    assert (mine.size, list(mine.ids), mine.position) == (theirs.size, list(theirs.ids), theirs.position)
    pairs: list[tuple[Any, Any]] = [
        (getattr(mine, name), getattr(theirs, name))
        for name in ("numeric", "labels", "label_mask", "weights", "groups")
    ]
    assert list(mine.events) == list(theirs.events)
    for name, jagged in {**mine.ids, **mine.events}.items():
        other = theirs.ids[name] if name in theirs.ids else theirs.events[name]
        pairs += [(jagged.values, other.values), (jagged.offsets, other.offsets)]
        pairs.append((jagged.weights, other.weights))
    for a, b in pairs:
        assert (a is None) == (b is None)
        if a is not None:
            assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
