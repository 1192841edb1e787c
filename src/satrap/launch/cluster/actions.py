"""Decisions of a supervisor, as actions to carry out, and its knowledge of a role."""

import signal
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from satrap.errors import SatrapError
from satrap.exchange.shard_map import ShardMap
from satrap.launch.launchers.launcher import Ended, Launched, Logged, Stop
from satrap.runtime.events import Event, Ready
from satrap.train.resharding.requests import ReshardRequest

TAIL_LINES = 3
"""Number of last log lines of a role in an error."""


@dataclass(frozen=True, slots=True)
class StartServer:
    """Start a server at an address, "" for any; with `fresh`, remove its journal first."""

    name: str
    address: str = ""
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class StartWorkers:
    """Start all workers: generation 0 at first, later generations from the snapshot of a step, if any."""

    generation: int
    step: int | None = None


@dataclass(frozen=True, slots=True)
class StopRole:
    """Request the end of a role, or kill it."""

    name: str
    how: Stop


@dataclass(frozen=True, slots=True)
class FindSnapshot:
    """Find the newest snapshot and pass its step to `Supervisor.restart_workers`."""


@dataclass(frozen=True, slots=True)
class Say:
    """Show a line to the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Tell:
    """Forward an event to the observers."""

    event: Event


@dataclass(frozen=True, slots=True)
class Finish:
    """End the run, with or without an error; every role has ended or received a stop."""

    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class GiveOrder:
    """Give the workers an order for the shards; None: withdraw it."""

    order: ReshardRequest | None


@dataclass(frozen=True, slots=True)
class KeepMap:
    """Save the shard map and a record of the move."""

    map: ShardMap
    entry: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class MakeRoom:
    """Check and reserve resources for a number of workers; the result goes to `Supervisor.has_room`."""

    workers: int


@dataclass(frozen=True, slots=True)
class MakeShardRoom:
    """Reserve resources for one more shard; the result goes to `Supervisor.shard_has_room`."""

    shard: int


@dataclass(frozen=True, slots=True)
class ChangeWorkers:
    """Change the number of workers of the run."""

    workers: int


@dataclass(frozen=True, slots=True)
class ReplyToRequest:
    """Answer a request of a user."""

    request: str
    answer: Mapping[str, Any] | SatrapError


Action = (
    StartServer
    | StartWorkers
    | StopRole
    | FindSnapshot
    | Say
    | Tell
    | Finish
    | GiveOrder
    | KeepMap
    | MakeRoom
    | MakeShardRoom
    | ChangeWorkers
    | ReplyToRequest
)


class RoleState:
    """State of a role. `address` is its previous address, "" for a new role."""

    def __init__(self, name: str, address: str = "") -> None:
        self.name, self.address = name, address
        self.ready = False  # since its last start
        self.moved = False  # its address has changed, and other processes know only the old one
        self.aside = False  # a shard before its join or after its drain; the run does not need it
        self.code: int | None = None  # its exit code, negative for a signal
        self._place, self._tail = "", deque[str](maxlen=TAIL_LINES)

    @property
    def kind(self) -> str:
        """The name without the number."""
        return self.name.rpartition(" ")[0]

    @property
    def killed(self) -> bool:
        """Whether a signal ended the role."""
        return self.code is not None and self.code < 0

    def heard(self, event: Event) -> None:
        """Record an event of the role."""
        match event:
            case Launched(place):
                self._place = place
            case Logged(line):
                self._tail.append(line)
            case Ready(address):
                self.moved |= self.address not in ("", address)
                self.address, self.ready = address, True
            case Ended(code):
                self.code = code

    @property
    def ending(self) -> str:
        """How the role ended: "was killed by SIGKILL" or "ended with exit code 1"."""
        if self.code is None:
            return "is running"
        if self.code < 0:
            return f"was killed by {signal.Signals(-self.code).name}"
        return f"ended with exit code {self.code}"

    @property
    def traces(self) -> str:
        """The role's place and last log lines, for an error."""
        lines = " | ".join(filter(None, self._tail))
        return self._place + (f"; last lines: {lines}" if lines else "; no log lines")
