"""Steps that all workers take together, even when some have fewer batches than others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from satrap.batch import Batch
from satrap.dense import Workers
from satrap.embedding import NO_BATCH, BatchLookup

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class StepInput:
    """One worker's part of a step.

    Args:
        ticket: its batch; `NO_BATCH`: it has none at present and takes part with weight 0.
        share: factor on its mean loss that makes the mean over workers the mean over all samples.
        samples: of all workers.
    """

    ticket: BatchLookup
    share: float
    samples: int

    @property
    def idle(self) -> bool:
        """Whether this worker has no batch."""
        return self.ticket is NO_BATCH


class _EndOfData(Enum):
    END = 0


_END = _EndOfData.END
"""Marks the end of the tickets."""


def agreed_steps(
    tickets: Iterable[BatchLookup | None],
    workers: Workers,
    weight: Callable[[Batch], float],
    ending: threading.Event,
) -> Iterator[StepInput | None]:
    """Yield this worker's steps until no worker has a batch left; all yield the same number.

    None: no worker has a batch at present, but more may come.

    Args:
        tickets: of this worker's batches; None: it has none at present.
        workers: the workers that step together.
        weight: returns the denominator of a batch's mean loss.
        ending: set on each worker to end earlier. Then all end after the same count of samples, so that none
            waits in a count for the others.
    """
    if workers.data.size == 1:
        for ticket in tickets:
            yield None if ticket is None else StepInput(ticket, 1.0, ticket.batch.size)
        return
    iterator = iter(tickets)
    item = next(iterator, _END)
    workers.meet("first batch")  # a barrier: opening files may take much longer than a step
    while True:
        ticket = None if isinstance(item, _EndOfData) else item
        mine = [0.0, 0] if ticket is None else [weight(ticket.batch), ticket.batch.size]
        counted = [*mine, item is not _END, ticket is not None, ending.is_set()]
        # This runs in the reading thread, several steps ahead of training. `count` has its own process group,
        # so it does not interleave with the sums of the training thread.
        total, samples, active, busy, ends = workers.data.count(counted)
        if ends or not active:
            return
        share = workers.data.size * mine[0] / total if total > 0 else 1.0
        yield StepInput(ticket or NO_BATCH, share, int(samples)) if busy else None
        item = next(iterator, _END)


def first(most: int | None, items: Iterable[Item | None]) -> Iterator[Item | None]:
    """Yield the first `most` items (None: all); items that are None pass through and do not count."""
    remaining = most
    for item in items if remaining != 0 else ():
        yield item
        if remaining is not None and item is not None:
            remaining -= 1
            if not remaining:
                return


def stretches(items: Iterable[Item | None]) -> Iterator[Iterator[Item]]:
    """Yield the items between two None as iterators, each to be exhausted before the next."""
    iterator, ended = iter(items), False

    def stretch() -> Iterator[Item]:
        nonlocal ended
        for item in iterator:
            if item is None:
                return
            yield item
        ended = True

    while not ended:
        yield stretch()
