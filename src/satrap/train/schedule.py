"""How far lookups run ahead of updates. The order of operations is the schedule."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from satrap.errors import ConfigError

Item = TypeVar("Item")
Pending = TypeVar("Pending")

MODES = ("sync", "hybrid", "async")
"""`sync`: every lookup sees all earlier updates. `hybrid`: it misses exactly the latest `staleness` of its
own worker; the network is updated in step. `async`: the network's weights are rows too, and nobody waits."""


def staleness_of(mode: str, staleness: int) -> int:
    """Return τ for a mode: 0 for `sync`, the given number for `hybrid` and `async`.

    Raises:
        ConfigError: an unknown mode or a negative staleness.
    """
    if mode not in MODES:
        raise ConfigError(f"mode {mode!r} is unknown", fix=f"use one of {', '.join(MODES)}")
    if staleness < 0:
        raise ConfigError(f"staleness must be >= 0, got {staleness}", fix="0 is the same as mode sync")
    return 0 if mode == "sync" else staleness


def lookahead(
    items: Iterable[Item],
    issue: Callable[[Item], Pending],
    staleness: int,
    ahead: deque[tuple[Item, Pending]] | None = None,
) -> Iterator[tuple[Item, Pending]]:
    """Issue the lookup of item t + τ, then hand out item t.

    The caller computes step t and issues its update before it asks for the next item. With an exchange
    that serves one caller in order, lookup t therefore sees exactly the updates 0 .. t - 1 - τ.

    Args:
        items: the batches, in training order.
        issue: starts the lookup of one item and returns at once.
        staleness: τ >= 0.
        ahead: an empty queue in which the caller sees what is in flight; default a hidden one.

    Yields:
        (item, what `issue` returned for it), in order.
    """
    ahead = deque() if ahead is None else ahead
    for item in items:
        ahead.append((item, issue(item)))
        if len(ahead) > staleness:
            yield ahead.popleft()
    while ahead:
        yield ahead.popleft()
