"""A unique name for each start attempt of a group of processes."""

from __future__ import annotations

import secrets
import time
from typing import Any

from satrap.errors import ExchangeError

_POLL_SECONDS = 0.02


def attempt(store: Any, rank: int, size: int, seconds: float) -> str:
    """Return a name that no earlier attempt used. All processes call this and get the same name.

    `torchrun` keeps its store when it restarts all processes. Its restart count is no substitute: it differs
    between machines, because only a machine where a process died counts the restart. So rank 0 makes a new
    name. Each other rank writes a fresh random hello and accepts only a welcome that contains it, so a
    welcome left by an earlier attempt is ignored.

    Args:
        store: a `torch.distributed.Store` for these processes; it may still hold keys of earlier attempts.
        rank, size: number of this process, and the number of processes.
        seconds: timeout while waiting for the others.

    Raises:
        ExchangeError: some processes did not join in time.
    """
    token, limit = secrets.token_hex(8), time.monotonic() + seconds
    if rank:
        store.set(f"hello/{rank}", token)
        while token not in (welcome := _get(store, "welcome").split()):
            _wait(limit, seconds, [0])
        store.set(f"taken/{rank}", welcome[0])
        return welcome[0]
    greeted = [""]
    while missing := [other for other in range(1, size) if _get(store, f"taken/{other}") != token]:
        hellos = [_get(store, f"hello/{other}") for other in range(1, size)]
        if hellos != greeted:
            greeted = hellos
            store.set("welcome", " ".join([token, *hellos]))
        _wait(limit, seconds, missing)
    return token


def _get(store: Any, key: str) -> str:
    return store.get(key).decode() if store.check([key]) else ""


def _wait(limit: float, seconds: float, missing: list[int]) -> None:
    if time.monotonic() > limit:
        names = ", ".join(map(str, missing[:8])) + (f" and {len(missing) - 8} more" if missing[8:] else "")
        raise ExchangeError(
            f"worker{'s' * (len(missing) > 1)} {names} did not join within {seconds:g} s",
            why="all workers must start together",
            fix="look at the logs of the missing workers",
        )
    time.sleep(_POLL_SECONDS)
