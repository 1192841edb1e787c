"""The clients of a shard: the workers of one run, and only their newest generation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import filterfalse
from typing import Any

from satrap.errors import ConfigError, StoreError
from satrap.exchange.servers.config import Worker
from satrap.exchange.servers.shard.gradient_barrier import member_of
from satrap.rpc.server.session import Session

MISSED = 100
"""Generations of workers that a shard may miss: all their workers died before their hello."""
_SHOWN = 8
"""Characters of a run's identity that an error shows: enough to distinguish runs, not to join one."""


class WorkerRegistry:
    """The clients that have sent a hello since the shard began to serve a run or a generation of it.

    Attributes:
        run: identity of the run.
        generation: generation of its group of workers.
        formats: by client, the code of the number format of its rows.
    """

    def __init__(self, run: str = "", generation: int = 0) -> None:
        self.run, self.generation = run, generation
        self.formats: dict[int, int] = {}
        self._present: set[int] = set()  # clients that have not sent a goodbye

    def check(self, session: Session) -> None:
        """Reject a request of a client that the shard does not serve.

        Raises:
            StoreError: the client has sent no hello, or its run or generation is over.
        """
        if member_of(session).generation < self.generation:
            raise StoreError("a newer group of workers has replaced this one")
        if session.client not in self.formats:
            raise StoreError("a request came before an accepted hello, or from a run that is over")

    def renewed_by(self, worker: Worker, *, repeating: bool) -> bool:
        """Return whether the shard starts again for a worker: of another run, or of a newer generation.

        Args:
            worker: sender of the hello.
            repeating: the hello comes from a journal, so it was accepted before.

        Raises:
            ConfigError: other clients hold the shard, or the generation cannot come next.
        """
        if worker.id.run != self.run:
            if self._present and not repeating:
                raise ConfigError(
                    f"the shard is held by run {self.run[:_SHOWN]!r}, "
                    f"but the hello is from run {worker.id.run[:_SHOWN]!r}",
                    why="two runs would overwrite each other's rows; workers of the first run that have not "
                    f"closed: {len(self._present)}",
                    fix="give all workers of one run the same `run`; wait for the end of the other run, or "
                    "restart the shard",
                )
            return True
        if worker.id.generation < self.generation:
            raise ConfigError(f"generation {self.generation} of the workers is already connected")
        if worker.id.generation > self.generation + MISSED:
            raise ConfigError(
                f"generation {worker.id.generation} of the workers cannot follow {self.generation}",
                why="the launcher counts generations one by one, and a newer one ends all older ones",
            )
        return worker.id.generation > self.generation

    def join(self, session: Session, worker: Worker) -> None:
        """Add a worker, and store its settings in its session."""
        self.formats[session.client] = worker.forward
        self._present.add(session.client)
        session.rank, session.gated = worker.id.rank, worker.gated
        member = member_of(session)
        member.ordered, member.generation = worker.ordered, self.generation

    def leave(self, client: int) -> None:
        """Remove a client that has sent a goodbye."""
        self.formats.pop(client, None)
        self._present.discard(client)

    def forget(self, gone: Callable[[int], bool]) -> None:
        """Allow another run to take the shard despite lost clients; one that reconnects first is served."""
        self._present = set(filterfalse(gone, self._present))

    def remember(self) -> dict[str, Any]:
        """Return the state as plain data."""
        formats = {str(client): code for client, code in self.formats.items()}
        return {"forward": formats, "generation": self.generation, "run": self.run}

    @classmethod
    def recall(cls, plain: Mapping[str, Any]) -> WorkerRegistry:
        """Return the members that `remember` described; other keys are ignored."""
        members = cls(plain["run"], plain["generation"])
        members.formats = {int(client): code for client, code in plain["forward"].items()}
        members._present = set(members.formats)
        return members
