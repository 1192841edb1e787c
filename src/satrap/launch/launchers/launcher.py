"""The interface of a launcher, which starts the processes of a run on one machine or many."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from satrap.config.keys.cluster import ClusterKeys
from satrap.runtime.events import Event


@dataclass(frozen=True)
class Role:
    """A process to start."""

    name: str  # its kind and number, for example "shard 0"
    command: Sequence[str]  # arguments of the Python interpreter
    assignment: str = ""  # one line for its standard input, "" for none
    listen: str | None = None  # HOST:PORT of a server, "" for a free port; None if it does not listen


@dataclass(frozen=True)
class Launched(Event):
    """First event of a role: it was started at a place such as "process 17"."""

    place: str


@dataclass(frozen=True)
class Logged(Event):
    """A role wrote a line to its log, or a line that is not an event to its standard output."""

    line: str


@dataclass(frozen=True)
class Ended(Event):
    """Last event of a role: it ended with an exit code, negative for a signal."""

    code: int


class Stop(Enum):
    """How a role should end."""

    SAVE = "a worker saves its state"
    RELEASE = "a server shuts down gracefully"
    KILL = "at once"


class Launcher(Protocol):
    """Starts and stops roles, and forwards their reports."""

    @property
    def host(self) -> str:
        """An address of this machine that roles can reach."""

    def reserve(self, keys: ClusterKeys, shards: Collection[int]) -> None:
        """Reserve resources for additional roles in `keys`; raise `ConfigError` if they do not fit.

        `shards` are the numbers of the shards; they override `keys`.
        """

    def release(self, keys: ClusterKeys, shards: Collection[int]) -> None:
        """Release, where possible, the resources of roles that are not in `keys` and `shards`."""

    def start(self, role: Role) -> None:
        """Start a role; one of the same name must have ended."""

    def stop(self, name: str, how: Stop) -> None:
        """Request the end of a role, or kill it; do nothing if it has ended."""

    def events(self, seconds: float) -> Sequence[tuple[str, Event]]:
        """Return reports as (name, event), in order; wait at most `seconds` for the first one."""

    def close(self) -> None:
        """Kill the roles that were not released; return when all have ended."""
