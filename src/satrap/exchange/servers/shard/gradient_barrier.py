"""`sync` with several workers: the gradients of all ranks become one optimizer step per row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from satrap.errors import ExchangeError, StoreError
from satrap.exchange.lookup import Array, LookupRequest
from satrap.exchange.split import union
from satrap.rpc.server.handler import Board
from satrap.rpc.server.session import Session
from satrap.rpc.wire.frames import Header, MessageKind, name_of
from satrap.store import segment_sum

FAR = 2
"""A request this many steps ahead of the open one is an error: workers look up at most one step ahead."""


@dataclass(frozen=True, slots=True)
class WorkerGradients:
    """One rank's gradients of a step: float32[n, dim] for the ids of each request."""

    requests: Sequence[LookupRequest]
    gradients: Sequence[Array]
    lr_scale: float


@dataclass(slots=True)
class WorkerState:
    """A shard's state of a client.

    Args:
        ordered: its lookups of a step wait for the lookups of lower ranks.
        updates: number of its updates accepted so far.
        open_step: step of its last update in `sync` with several workers, else -1.
        generation: generation of its group of workers.
    """

    ordered: bool = False
    updates: int = 0
    open_step: int = -1
    generation: int = 0


def member_of(session: Session) -> WorkerState:
    """Return the shard's state of a client."""
    if not isinstance(session.data, WorkerState):
        session.data = WorkerState()
    return session.data


class GradientBarrier(Board):
    """Collects the gradients of the open step until it is complete; requests of later steps wait.

    So every lookup of a step sees all updates of the steps before it, whichever rank is faster.

    Attributes:
        world: number of ranks.
        completed: number of complete steps; the next one is open.
        looked: ranks with ordered lookups that have looked up in the open step.
        shares: rank -> its gradients of the open step.
    """

    def __init__(self) -> None:
        self.world, self.completed = 0, 0
        self.looked: set[int] = set()
        self.shares: dict[int, WorkerGradients] = {}

    def join(self, rank: int, world: int) -> None:
        """Add a rank to the step; drop gradients of the open step from an earlier worker of this rank."""
        if world != self.world:
            self.world = world
            self.shares.clear()
            self.looked.clear()
        self.shares.pop(rank, None)
        self.looked.discard(rank)

    @property
    def progress(self) -> tuple[int, int, int]:  # type: ignore[override]
        """See `Board`; here it grows."""
        return self.completed, len(self.looked), len(self.shares)

    def look(self, rank: int, step: int) -> None:
        """Record that a rank has looked up in a step, if it is the open one."""
        if step == self.completed:
            self.looked.add(rank)

    def refusal(self, session: Session, header: Header) -> ExchangeError | None:
        """See `Board.refusal`."""
        if not session.gated or header.step - self.completed < FAR:
            return None
        return ExchangeError(
            f"a request of step {header.step} came while step {self.completed} is open",
            where=f"{name_of(header.kind)} of rank {session.rank}",
            why="in sync mode a worker sends requests of a step after its update of the step before",
        )

    def must_wait(self, session: Session, header: Header) -> bool:
        """See `Board.must_wait`."""
        if not session.gated:
            return False
        if member_of(session).ordered and (header.kind, header.step) == (MessageKind.LOOKUP, self.completed):
            # Lookups create and evict rows, so a fixed order of ranks makes their effects reproducible. A
            # rank that has sent its gradients already will not look up in this step any more.
            before = range(session.rank)
            return any(rank not in self.looked and rank not in self.shares for rank in before)
        return header.step > self.completed

    def missing(self) -> list[int]:
        """See `Board.missing`: ranks without gradients in the open step."""
        return [rank for rank in range(self.world) if rank not in self.shares]

    def too_late(self, session: Session, header: Header, silent: str, seconds: float) -> ExchangeError:
        """See `Board.too_late`."""
        return ExchangeError(
            f"step {self.completed} is not complete: no update came from rank {silent}",
            where=f"stage: {name_of(header.kind)} of rank {session.rank}",
            why=f"the shard waited {seconds:g} s, and in sync mode every rank must send its update",
        )

    def offer(self, rank: int, step: int, share: WorkerGradients) -> Sequence[WorkerGradients] | None:
        """Add a rank's gradients; the last rank completes the step and gets all shares in rank order.

        For another step than the open one, or a second share of a rank, it raises a `StoreError`.
        """
        if step != self.completed or rank in self.shares:
            raise StoreError(
                f"rank {rank} sent gradients of step {step} while step {self.completed} is open",
                why="in sync mode every worker sends exactly one update per step",
            )
        self.shares[rank] = share
        if len(self.shares) < self.world:
            return None
        # In rank order, not in order of arrival: floating-point sums depend on the order.
        shares = [self.shares[r] for r in range(self.world)]
        self.shares.clear()
        self.looked.clear()
        self.completed += 1
        return shares


def merge(shares: Sequence[WorkerGradients]) -> WorkerGradients:
    """Sum the gradients of equal ids per table group, in the order of the shares."""
    groups: dict[int, list[tuple[LookupRequest, Array]]] = {}
    for share in shares:
        for request, gradients in zip(share.requests, share.gradients, strict=True):
            groups.setdefault(request.group, []).append((request, gradients))
    merged = [_merge(*zip(*parts, strict=True)) for _, parts in sorted(groups.items())]
    return WorkerGradients([r for r, _ in merged], [g for _, g in merged], shares[0].lr_scale)


def _merge(requests: Sequence[LookupRequest], gradients: Sequence[Array]) -> tuple[LookupRequest, Array]:
    if len(requests) == 1:
        return requests[0], gradients[0]
    ids, splits, places = union([(request.ids, request.splits) for request in requests])
    # each row in the order of the parts
    summed = segment_sum(np.concatenate(gradients), np.concatenate(places), len(ids))
    return LookupRequest(requests[0].group, ids, splits), summed
