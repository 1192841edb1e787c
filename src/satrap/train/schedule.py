"""How far lookups run ahead of updates. The order of operations is the schedule."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar, TypeVar

from satrap.dense import DataParallelBackend, RemoteStep
from satrap.errors import ConfigError
from satrap.runtime.arguments import checked

Item = TypeVar("Item")
Pending = TypeVar("Pending")

WARMUP_STEPS = 20
"""Steps after which staleness grows by one by default; docs/decisions/0025-staleness-begins-small.md."""


@checked()
def lookahead(
    items: Iterable[Item],
    issue: Callable[[Item], Pending],
    staleness: Callable[[int], int],
    ahead: deque[tuple[Item, Pending]] | None = None,
    start: int = 0,
) -> Iterator[tuple[Item, Pending]]:
    """Issue the lookup of item t + τ, then yield item t.

    The caller computes step t and issues its update before it takes the next item. With an exchange that
    serves one caller in order, lookup t therefore sees exactly the updates 0 .. t - 1 - τ(t).

    Args:
        items: the batches, in training order.
        issue: starts the lookup of one item and returns at once.
        staleness: returns τ(t) >= 0, which never decreases.
        ahead: an empty queue in which the caller sees the lookups in flight; default a hidden one.
        start: number t of the first item.

    Yields:
        (item, result of `issue` for it), in order.
    """
    ahead = deque() if ahead is None else ahead
    for following, item in enumerate(items, start + 1):
        ahead.append((item, issue(item)))
        while len(ahead) > staleness(following):
            yield ahead.popleft()
    while ahead:
        yield ahead.popleft()


class TrainingSchedule:
    """Decides when lookups, updates and the network's steps happen; the modes differ only here.

    Args:
        staleness: τ, the number of its own latest updates that a worker's lookup misses.
        warmup: the steps over which it grows from 0 to this value, default none.

    Raises:
        ConfigError: a negative number.
    """

    mode: ClassVar[str]
    dense: ClassVar[type[DataParallelBackend]] = DataParallelBackend
    """The backend for the network's steps."""

    def __init__(self, staleness: int, warmup: int = 0) -> None:
        if staleness < 0:
            raise ConfigError(f"staleness must be >= 0, got {staleness}", fix="0 is the same as mode sync")
        if warmup < 0:
            raise ConfigError(f"staleness_warmup must be >= 0, got {warmup}", fix="0: no warm-up")
        self.staleness, self.warmup = staleness, warmup

    def ahead(self, step: int) -> int:
        """Return how many lookups may be in flight when the lookup of a step, counted from 0, is issued."""
        return self.staleness if step >= self.warmup else self.staleness * step // self.warmup


class Hybrid(TrainingSchedule):
    """A lookup misses exactly the latest `staleness` updates of its own worker; networks step together."""

    mode = "hybrid"


class Sync(TrainingSchedule):
    """Every lookup sees all earlier updates, of all workers, even if it is issued `lookahead` steps early."""

    mode = "sync"

    def __init__(self, staleness: int = 0, lookahead: int = 0) -> None:
        super().__init__(staleness)
        self.staleness, self._lookahead = 0, lookahead

    def ahead(self, step: int) -> int:
        """See `TrainingSchedule.ahead`; early lookups are patched, so no warm-up is needed."""
        return self._lookahead


class Async(TrainingSchedule):
    """The network's weights are rows as well, and workers do not synchronize."""

    mode = "async"
    dense = RemoteStep


_SCHEDULES: dict[str, type[TrainingSchedule]] = {kind.mode: kind for kind in (Sync, Hybrid, Async)}
MODES = tuple(_SCHEDULES)


def schedule_of(mode: str, staleness: int, lookahead: int = 0, warmup: int | None = None) -> TrainingSchedule:
    """Return the schedule of a mode; a `warmup` of None is `WARMUP_STEPS` for each step of staleness.

    Raises:
        ConfigError: an unknown mode, a negative number, or lookahead in another mode than sync.
    """
    if mode not in MODES:
        raise ConfigError(f"mode {mode!r} is unknown", fix=f"use one of {', '.join(MODES)}")
    if lookahead < 0:
        raise ConfigError(f"lookahead must be >= 0, got {lookahead}")
    if mode == Sync.mode:
        return Sync(staleness, lookahead)
    if lookahead:
        raise ConfigError(
            f"lookahead requires mode sync, got mode {mode}",
            why=f"in mode {mode} lookups run ahead already, by the staleness",
            fix="use mode sync, or remove lookahead",
        )
    return _SCHEDULES[mode](staleness, WARMUP_STEPS * staleness if warmup is None else warmup)
