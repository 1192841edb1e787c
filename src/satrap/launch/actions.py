"""What a supervisor decides, as actions for others to carry out, and what it knows about a role."""

import signal
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from satrap.errors import SatrapError
from satrap.events import Event, Ready
from satrap.exchange.shard_map import ShardMap
from satrap.launchers.launcher import Ended, Launched, Logged, Stop
from satrap.train.desk import Order

TAIL_LINES = 3
"""Last lines of a role's log that an error shows."""


@dataclass(frozen=True, slots=True)
class StartServer:
    """Start a server at an address, "" for any; `fresh`: its journal is removed first."""

    name: str
    address: str = ""
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class StartWorkers:
    """Start all workers: the first time as generation 0, later from the snapshot of a step, if any."""

    generation: int
    step: int | None = None


@dataclass(frozen=True, slots=True)
class StopRole:
    """Ask a role to end, or kill it."""

    name: str
    how: Stop


@dataclass(frozen=True, slots=True)
class FindSnapshot:
    """Find the newest snapshot; `Supervisor.restart_workers` takes its step."""


@dataclass(frozen=True, slots=True)
class Say:
    """Show a line to the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Tell:
    """Pass an event to the observers."""

    event: Event


@dataclass(frozen=True, slots=True)
class Finish:
    """The run is over, with or without an error; every role has ended or been asked to."""

    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class GiveOrder:
    """Give the workers an order for the shards; `None`: take it away."""

    order: Order | None


@dataclass(frozen=True, slots=True)
class KeepMap:
    """Write down the shard map, and what was moved for it."""

    map: ShardMap
    entry: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class MakeRoom:
    """Find out whether so many workers could train, and reserve what they need; `Supervisor.has_room`."""

    workers: int


@dataclass(frozen=True, slots=True)
class MakeShardRoom:
    """Reserve what one more shard needs; `Supervisor.shard_has_room`."""

    shard: int


@dataclass(frozen=True, slots=True)
class ChangeWorkers:
    """From now on the run has so many workers."""

    workers: int


@dataclass(frozen=True, slots=True)
class Reply:
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
    | Reply
)


class RoleState:
    """What is known about a role; its address is where it listened before, "" for a new one."""

    def __init__(self, name: str, address: str = "") -> None:
        self.name, self.address = name, address
        self.ready = False  # since it was started the last time
        self.moved = False  # it listens elsewhere than before, and others know the former address only
        self.aside = False  # a shard that has not joined yet, or has left: the run does not need it
        self.code: int | None = None  # its exit code, negative for a signal
        self._place, self._tail = "", deque[str](maxlen=TAIL_LINES)

    @property
    def kind(self) -> str:
        """The name without the number."""
        return self.name.rpartition(" ")[0]

    @property
    def killed(self) -> bool:
        """Whether a signal ended it."""
        return self.code is not None and self.code < 0

    def heard(self, event: Event) -> None:
        """Record what it has reported."""
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
        """How it ended, in words: "was killed by SIGKILL", "ended with exit code 1"."""
        if self.code is None:
            return "is running"
        if self.code < 0:
            return f"was killed by {signal.Signals(-self.code).name}"
        return f"ended with exit code {self.code}"

    @property
    def traces(self) -> str:
        """Where it ran and the last lines of its log, for an error."""
        lines = " | ".join(filter(None, self._tail))
        return self._place + (f"; its last lines: {lines}" if lines else "; it logged nothing")
