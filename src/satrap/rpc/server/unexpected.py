"""Turns unexpected exceptions into errors for the client."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from satrap.errors import SatrapError, StoreError

MOST = 32
"""Different tracebacks that a process logs."""

_logged: set[tuple[str, str, int]] = set()
_lock = threading.Lock()


@contextmanager
def answerable(where: str, *, begun: bool) -> Iterator[None]:
    """Raise a `SatrapError` for any exception inside; log each unexpected traceback once.

    `where` names the process and the request; `begun`: the request may have been executed in part.
    """
    effect = (
        "the request may have been executed in part"
        if begun
        else "the request was rejected, and has changed nothing"
    )
    try:
        yield
    except SatrapError:
        raise
    except MemoryError as error:
        raise StoreError(f"not enough memory for the request: {effect}", where=where) from error
    except Exception as error:
        _log(error, where)
        raise StoreError(
            f"the request failed unexpectedly, {type(error).__name__}: {str(error)[:200]}",
            where=where,
            why=effect,
            fix="this is a bug in satrap: please report it with the traceback in the log of that process",
        ) from error


def _log(error: Exception, where: str) -> None:
    frames = traceback.extract_tb(error.__traceback__)
    last = (frames[-1].filename, frames[-1].lineno or 0) if frames else ("", 0)
    place = type(error).__name__, *last
    with _lock:
        if place in _logged or len(_logged) >= MOST:
            return
        _logged.add(place)
    lines = "".join(traceback.format_exception(error))
    print(f"unexpected error ({where}); the same one is not logged again\n{lines}", end="", file=sys.stderr)
