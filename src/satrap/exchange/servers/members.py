"""Who a shard serves: the workers of one run, and of these only the newest generation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import filterfalse
from typing import Any

from satrap.errors import ConfigError, StoreError
from satrap.exchange.servers.config import Worker
from satrap.exchange.servers.steps import member_of
from satrap.rpc.server.session import Session

MISSED = 100
"""Generations of workers a shard may not hear of: all of them died before they greeted it."""
_SHOWN = 8
"""Characters of a run's identity that an error shows: enough to tell runs apart, not to join one."""


class Members:
    """The clients that have said hello since the shard began to serve a run or a generation of it.

    Attributes:
        run: identity of the run.
        generation: of its group of workers.
        formats: by client, the code of the number format in which it gets rows.
    """

    def __init__(self, run: str = "", generation: int = 0) -> None:
        self.run, self.generation = run, generation
        self.formats: dict[int, int] = {}
        self._present: set[int] = set()  # clients that have not left the run

    def check(self, session: Session) -> None:
        """Refuse a request of a client that the shard does not serve.

        Raises:
            StoreError: it has not said hello, or its run or generation is over.
        """
        if member_of(session).generation < self.generation:
            raise StoreError("a newer group of workers has taken this one's place")
        if session.client not in self.formats:
            raise StoreError("a request before an accepted hello, or of a run that is over")

    def renewed_by(self, worker: Worker, *, repeating: bool) -> bool:
        """Return whether the shard starts anew with a worker: of another run, or of a newer generation.

        Args:
            worker: who says hello.
            repeating: its hello comes from a journal, so it was accepted.

        Raises:
            ConfigError: other clients hold the shard, or the generation cannot come next.
        """
        if worker.id.run != self.run:
            if self._present and not repeating:
                raise ConfigError(
                    f"the shard is held by run {self.run[:_SHOWN]!r}, "
                    f"this is a worker of run {worker.id.run[:_SHOWN]!r}",
                    why=f"two runs would write into each other's rows; {len(self._present)} of its workers "
                    "have not said goodbye",
                    fix="give all workers of one run the same `run`; wait for the other's end, or restart "
                    "the shard",
                )
            return True
        if worker.id.generation < self.generation:
            raise ConfigError(f"generation {self.generation} of the workers is here already")
        if worker.id.generation > self.generation + MISSED:
            raise ConfigError(
                f"generation {worker.id.generation} of the workers cannot follow {self.generation}",
                why="the launcher counts them one by one, and a newer one makes an end of all before it",
            )
        return worker.id.generation > self.generation

    def join(self, session: Session, worker: Worker) -> None:
        """Take a worker in, and note in its session what it said about itself."""
        self.formats[session.client] = worker.forward
        self._present.add(session.client)
        session.rank, session.gated = worker.id.rank, worker.gated
        member = member_of(session)
        member.ordered, member.generation = worker.ordered, self.generation

    def leave(self, client: int) -> None:
        """Take leave of a client that has said goodbye."""
        self.formats.pop(client, None)
        self._present.discard(client)

    def forget(self, gone: Callable[[int], bool]) -> None:
        """Let another run come in spite of clients that are gone; should one come back, it is served."""
        self._present = set(filterfalse(gone, self._present))

    def remember(self) -> dict[str, Any]:
        """Return all of this as plain data."""
        formats = {str(client): code for client, code in self.formats.items()}
        return {"forward": formats, "generation": self.generation, "run": self.run}

    @classmethod
    def recall(cls, plain: Mapping[str, Any]) -> Members:
        """Return what `remember` described, among other things."""
        members = cls(plain["run"], plain["generation"])
        members.formats = {int(client): code for client, code in plain["forward"].items()}
        members._present = set(members.formats)
        return members
