"""Steps that all workers take together, even when some have fewer batches than others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from satrap.batch import Batch
from satrap.dense import Workers
from satrap.embedding import Ticket


@dataclass(frozen=True, slots=True)
class Turn:
    """One worker's part of a step.

    Args:
        ticket: its batch; None: it has none left and takes part with weight 0.
        share: factor on its mean loss that makes the mean over workers the mean over all samples.
        samples: of all workers.
    """

    ticket: Ticket | None
    share: float
    samples: int


def turns(
    tickets: Iterable[Ticket],
    workers: Workers,
    weight: Callable[[Batch], float],
    ending: threading.Event,
) -> Iterator[Turn]:
    """Yield this worker's turns until no worker has a batch left; all yield equally many.

    Args:
        tickets: of this worker's batches.
        workers: who step together.
        weight: returns the denominator of a batch's mean loss.
        ending: set on each worker to end earlier. Then all end after the same count of samples, so that
            none waits in a count for the others.
    """
    if workers.data.size == 1:
        for ticket in tickets:
            yield Turn(ticket, 1.0, ticket.batch.size)
        return
    iterator = iter(tickets)
    ticket_or_none = next(iterator, None)
    workers.meet("first batch")  # opening files may take much longer than a step
    while True:
        batch = None if ticket_or_none is None else ticket_or_none.batch
        own = [0.0, 0, 0] if batch is None else [weight(batch), batch.size, 1]
        total, samples, active, ends = workers.data.count([*own, ending.is_set()])
        if ends or not active:
            return
        share = workers.data.size * own[0] / total if total > 0 else 1.0
        yield Turn(ticket_or_none, share, int(samples))
        ticket_or_none = next(iterator, None)
