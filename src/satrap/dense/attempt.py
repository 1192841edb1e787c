"""A name for each attempt of the same processes to start, on which all of them agree."""

from __future__ import annotations

import secrets
import time
from typing import Any

from satrap.errors import ExchangeError

_POLL_SECONDS = 0.02


def attempt(store: Any, rank: int, size: int, seconds: float) -> str:
    """Return a name that no earlier attempt had; all processes call it, and get the same.

    `torchrun` keeps its store when it starts all processes again, and its count of attempts differs between
    machines: only where a process has died does it count. So rank 0 makes the name, and another rank takes it
    from a welcome that answers its own hello, whose word nobody has used before.

    Args:
        store: a `torch.distributed.Store` for these processes; it may hold what earlier attempts have left.
        rank, size: number of this process, and how many there are.
        seconds: to wait for the others.

    Raises:
        ExchangeError: others did not come.
    """
    own, limit = secrets.token_hex(8), time.monotonic() + seconds
    if rank:
        store.set(f"hello/{rank}", own)
        while own not in (welcome := _get(store, "welcome").split()):
            _wait(limit, seconds, [0])
        store.set(f"taken/{rank}", welcome[0])
        return welcome[0]
    greeted = [""]
    while missing := [other for other in range(1, size) if _get(store, f"taken/{other}") != own]:
        hellos = [_get(store, f"hello/{other}") for other in range(1, size)]
        if hellos != greeted:
            greeted = hellos
            store.set("welcome", " ".join([own, *hellos]))
        _wait(limit, seconds, missing)
    return own


def _get(store: Any, key: str) -> str:
    return store.get(key).decode() if store.check([key]) else ""


def _wait(limit: float, seconds: float, missing: list[int]) -> None:
    if time.monotonic() > limit:
        names = ", ".join(map(str, missing[:8])) + (f" and {len(missing) - 8} more" if missing[8:] else "")
        raise ExchangeError(
            f"worker{'s' * (len(missing) > 1)} {names} did not come within {seconds:g} s",
            why="all workers begin together",
            fix="look at the other workers' logs",
        )
    time.sleep(_POLL_SECONDS)
