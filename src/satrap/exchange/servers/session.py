"""What a shard server remembers of one client: the next request, and answers it may have to repeat."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from enum import Enum
from typing import Any

from satrap.exchange.servers.frames import Buffer, Digest, Header, digest

WINDOW = 256
"""Unacknowledged requests a client may have; the server keeps at most as many answers."""

_REMEMBERED = ("client", "done", "gated", "ordered", "rank", "fenced", "updates", "open_step", "generation")


class Verdict(Enum):
    """What to do with a numbered request that has just arrived."""

    NEW = "execute it"
    ANSWERED = "repeat its answer"
    RUNNING = "it is being executed; its answer will come"
    GAP = "an earlier request is missing: ask the client"
    FORGOTTEN = "its answer has been acknowledged"


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer, kept until the client acknowledges it."""

    header: Header
    parts: Sequence[Buffer]
    payload: Digest

    @classmethod
    def of(cls, header: Header, parts: Sequence[Buffer] = ()) -> Answer:
        """Return the answer with these parts."""
        return cls(header, parts, digest(parts))


class Session:
    """Exactly once and in order: request n is executed after n - 1, in whatever way they arrive.

    Does no input or output. One thread may admit requests while another keeps their answers.

    Args:
        client: number the client chose at random.
        identity: where its messages come from now; a reconnect changes it.

    Attributes:
        next: sequence that is executed next.
        done: every sequence below it has been answered.
        bytes: of the answers kept.
        seen: when its last message came, in seconds of the server's clock.
        fenced: another client has taken this one's place.
        gated: requests wait until optimizer steps are complete (`sync` with several workers).
        ordered: lookups of a step, too, wait for those of lower ranks.
        rank: rank of the worker.
        updates: updates it has sent that were accepted.
        open_step: the step its last update belongs to (`sync` with several workers), else -1.
        generation: of the group of workers it belongs to.
    """

    def __init__(self, client: int, identity: bytes) -> None:
        self.client, self.identity = client, identity
        self.next, self.done, self.bytes, self.seen = 0, 0, 0, 0.0
        self.fenced, self.gated, self.ordered, self.rank, self.generation = False, False, False, 0, 0
        self.updates, self.open_step = 0, -1
        self._answers: dict[int, Answer] = {}
        self._lock = threading.Lock()

    def admit(self, header: Header) -> Verdict:
        """Take note of a request's header; only NEW ones are to be executed."""
        with self._lock:
            self._forget(header.acknowledged)
            if header.sequence == self.next:
                self.next += 1
                return Verdict.NEW
            if header.sequence > self.next:
                return Verdict.GAP
            if header.sequence in self._answers:
                return Verdict.ANSWERED
            return Verdict.RUNNING if header.sequence >= self.done else Verdict.FORGOTTEN

    def full(self, header: Header, limit: int) -> bool:
        """Whether a new request would leave too many answers (or bytes of them) unacknowledged."""
        with self._lock:
            self._forget(header.acknowledged)
            return header.sequence == self.next and (len(self._answers) >= WINDOW or self.bytes > limit)

    def keep(self, answer: Answer) -> None:
        """Remember the answer to a request that has been executed."""
        with self._lock:
            self._answers[answer.header.sequence] = answer
            self.bytes += answer.payload.size
            self.done = max(self.done, answer.header.sequence + 1)

    def answer(self, sequence: int) -> Answer:
        """Return the answer that was kept."""
        return self._answers[sequence]

    def remember(self) -> tuple[dict[str, Any], list[Answer]]:
        """Return what it is after the requests executed so far, as plain data, and the answers it keeps."""
        with self._lock:
            answers = list(self._answers.values())
            plain = {name: getattr(self, name) for name in _REMEMBERED}
            plain["answers"] = [[astuple(a.header), len(a.parts)] for a in answers]
            return plain, answers

    def resume(self, plain: Mapping[str, Any], answers: Sequence[Answer]) -> None:
        """Become what `remember` returned."""
        for name in _REMEMBERED:
            setattr(self, name, plain[name])
        for answer in answers:
            self.keep(answer)
        self.next = self.done = plain["done"]

    def _forget(self, acknowledged: int) -> None:
        for sequence in [s for s in self._answers if s < acknowledged]:
            self.bytes -= self._answers.pop(sequence).payload.size
