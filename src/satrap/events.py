"""What a process reports to the program that started it: typed events, one JSON object per line."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Self

from satrap.errors import SatrapError, error_of, error_values


class Event:
    """Base of the events: frozen dataclasses, each with a name of its own.

    A kind with values that JSON does not have overrides `values` and `of`.
    """

    def values(self) -> dict[str, Any]:
        """Return the values as plain data."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]

    @classmethod
    def of(cls, values: dict[str, Any]) -> Self:
        """Return the event with these values, which have passed through JSON."""
        return cls(**values)


Report = Callable[[Event], None]


@dataclass(frozen=True)
class Recovering(Event):
    """A shard that was killed loads what it held from `source`, in words; clients wait."""

    source: str


@dataclass(frozen=True)
class Ready(Event):
    """A server accepts connections at `address`, HOST:PORT."""

    address: str


@dataclass(frozen=True)
class MetricsServed(Event):
    """The metrics of a process can be read at `address`, HOST:PORT."""

    address: str


@dataclass(frozen=True)
class Notice(Event):
    """A line that the user should read."""

    text: str


@dataclass(frozen=True)
class Failed(Event):
    """A process cannot go on."""

    error: SatrapError

    def values(self) -> dict[str, Any]:
        """Return the four parts of the error."""
        return error_values(self.error)

    @classmethod
    def of(cls, values: dict[str, Any]) -> Self:
        """Return the event with an error of the same type."""
        return cls(error_of(values))


class Outlet:
    """Sends events on what was the standard output of this process.

    What the program prints from now on goes to standard error, its log.
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
    """Return the event on a line, None if it holds none of the kinds that this process knows."""
    kinds = Event.__subclasses__()
    for kind in kinds:  # grows while it is walked: the whole tree
        kinds += kind.__subclasses__()
    try:
        values = json.loads(line)
        name = values.pop("event")
        return next((kind.of(values) for kind in kinds if kind.__name__ == name), None)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
