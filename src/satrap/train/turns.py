"""The steps that all workers take together, although some have fewer batches than others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from satrap.batch import Batch
from satrap.dense import Workers
from satrap.embedding import Ticket


@dataclass(frozen=True, slots=True)
class Turn:
    """One worker's part of a step.

    Args:
        ticket: its batch; None: it has no more, and takes part with weight 0.
        share: factor on its mean loss: the mean over the workers is then the mean over all samples.
        samples: of all workers.
    """

    ticket: Ticket | None
    share: float
    samples: int


def turns(tickets: Iterable[Ticket], workers: Workers, weight: Callable[[Batch], float]) -> Iterator[Turn]:
    """Yield this worker's turns until no worker has a batch left; all yield equally many.

    Args:
        tickets: this worker's batches.
        workers: who take turns together.
        weight: what a batch counts in the mean loss: its denominator.

    Raises:
        ExchangeError: another worker is lost.
    """
    if workers.world == 1:
        for ticket in tickets:
            yield Turn(ticket, 1.0, ticket.batch.size)
        return
    iterator = iter(tickets)
    ticket_or_none = next(iterator, None)
    workers.meet("first batch")  # opening files may take much longer than a step
    while True:
        mine = 0.0 if ticket_or_none is None else weight(ticket_or_none.batch)
        size = 0 if ticket_or_none is None else ticket_or_none.batch.size
        total, samples, active = workers.count([mine, size, float(ticket_or_none is not None)])
        if not active:
            return
        share = workers.world * mine / total if total > 0 else 1.0
        yield Turn(ticket_or_none, share, int(samples))
        ticket_or_none = next(iterator, None)
