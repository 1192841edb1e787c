"""The counters of a server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    """A server's counts of messages.

    Args:
        messages, malformed, repeated: messages received, and how many of them were malformed or repeated.
        received_bytes, sent_bytes: payload.
    """

    messages: int = 0
    malformed: int = 0
    repeated: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0


@dataclass(slots=True)
class ServerStatistics(Counters):
    """Counters of a server since its start, and its present state.

    Args:
        clients: clients known now.
        queued, queued_bytes: requests that wait now.
        kept_bytes: unacknowledged responses held now.
        requests: requests executed, by kind.
        refused: requests rejected.
        busy_seconds: time spent executing.
        seconds: time since the start.
        journal_bytes: size of the journal.
        recovered: updates recovered from the journal.
    """

    clients: int = 0
    queued: int = 0
    queued_bytes: int = 0
    kept_bytes: int = 0
    requests: Mapping[str, int] = field(default_factory=dict)
    refused: int = 0
    busy_seconds: float = 0.0
    seconds: float = 0.0
    journal_bytes: int = 0
    recovered: int = 0
