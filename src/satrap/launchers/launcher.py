"""The interface of a launcher, which starts the processes of a run on one machine or many."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from satrap.config.cluster import Cluster
from satrap.events import Event


@dataclass(frozen=True)
class Role:
    """A process to start."""

    name: str  # its kind and number, for example "shard 0"
    command: Sequence[str]  # arguments of the Python interpreter
    assignment: str = ""  # one line for its standard input, "" for none
    listen: str | None = None  # HOST:PORT of a server, "" for a free port; None if it does not listen


@dataclass(frozen=True)
class Launched(Event):
    """A role was started, at a place such as "process 17"; its first event."""

    place: str


@dataclass(frozen=True)
class Logged(Event):
    """A role wrote a line to its log, or a line to its standard output that is not an event."""

    line: str


@dataclass(frozen=True)
class Ended(Event):
    """A role ended with an exit code, negative for a signal; its last event."""

    code: int


class Stop(Enum):
    """How a role should end."""

    SAVE = "a worker saves what it has trained"
    RELEASE = "a server ends in an orderly way"
    KILL = "at once"


class Launcher(Protocol):
    """Starts and stops roles, and passes on their reports."""

    @property
    def host(self) -> str:
        """An address of this machine that roles reach."""

    def reserve(self, keys: Cluster, shards: Collection[int]) -> None:
        """Reserve what those roles need that `keys` have more; `ConfigError` if there is no room for them.

        Shards have the numbers in `shards`, whatever `keys` say.
        """

    def release(self, keys: Cluster, shards: Collection[int]) -> None:
        """Give back, as far as possible, what other roles than those of `reserve` have reserved."""

    def start(self, role: Role) -> None:
        """Start a role; one of the same name must have ended."""

    def stop(self, name: str, how: Stop) -> None:
        """Ask a role to end, or kill it; do nothing if it has ended."""

    def events(self, seconds: float) -> Sequence[tuple[str, Event]]:
        """Return reports as (name, event), in order; wait at most `seconds` for the first."""

    def close(self) -> None:
        """Kill the roles that were not released; return once all have ended."""
