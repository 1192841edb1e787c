"""Typed events that a process reports to its parent program, one JSON object per line."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Self

from satrap.errors import SatrapError, error_of, error_values


class Event:
    """Base of the events: frozen dataclasses with unique class names.

    An event with values that JSON cannot represent overrides `values` and `of`.
    """

    def values(self) -> dict[str, Any]:
        """Return the values as plain data."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]

    @classmethod
    def of(cls, values: dict[str, Any]) -> Self:
        """Return the event with these values, as decoded from JSON."""
        return cls(**values)


Report = Callable[[Event], None]


@dataclass(frozen=True)
class Recovering(Event):
    """A restarted shard loads its rows from `source` (a description for the user); clients wait."""

    source: str


@dataclass(frozen=True)
class Ready(Event):
    """A server accepts connections at `address`, HOST:PORT."""

    address: str


@dataclass(frozen=True)
class MetricsServed(Event):
    """A process serves its metrics at `address`, HOST:PORT."""

    address: str


@dataclass(frozen=True)
class Notice(Event):
    """A line that the user should read."""

    text: str


@dataclass(frozen=True)
class Failed(Event):
    """A process cannot continue."""

    error: SatrapError

    def values(self) -> dict[str, Any]:
        """Return the four parts of the error."""
        return error_values(self.error)

    @classmethod
    def of(cls, values: dict[str, Any]) -> Self:
        """Return the event with an error of the same type."""
        return cls(error_of(values))


class Outlet:
    """Sends events on this process's original standard output.

    From now on, standard output goes to standard error, which is the log.
    """

    def __init__(self) -> None:
        self._file = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self._lock = threading.Lock()

    def send(self, event: Event) -> None:
        """Send an event; any thread may call it."""
        with self._lock:
            self._file.write(encode(event) + "\n")
            self._file.flush()


def encode(event: Event) -> str:
    """Return an event as one line."""
    return json.dumps({"event": type(event).__name__, **event.values()})


def decode(line: str) -> Event | None:
    """Return the event on a line, None if this process does not know its kind."""
    kinds = Event.__subclasses__()
    for kind in kinds:  # the list grows during the loop, to cover the whole tree
        kinds += kind.__subclasses__()
    try:
        values = json.loads(line)
        name = values.pop("event")
        return next((kind.of(values) for kind in kinds if kind.__name__ == name), None)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
