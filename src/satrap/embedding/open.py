"""Lookups that are open when a snapshot is taken: what it keeps of them, and how they are issued again.

A snapshot keeps distinct ids and their rows, whoever pools them; so a run may go on with embedding workers or
without.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

import numpy as np
import numpy.typing as npt

from satrap.embedding.plan import EmbeddingPlan
from satrap.embedding.workers import PooledExchange, PooledPlan
from satrap.embedding.workers.plan import PooledRequest
from satrap.exchange import Exchange, Request

Rows = npt.NDArray[np.float32]


def distinct_requests(plan: EmbeddingPlan, requests: Sequence[Request]) -> list[Request]:
    """Return the requests with the distinct ids that stand behind pooled ones; others as they are."""
    pooled = [request for request in requests if isinstance(request, PooledRequest)]
    if not pooled or not isinstance(plan, PooledPlan):
        return list(requests)
    assert pooled[0].batch is not None
    return [*plan.distinct(pooled[0].batch).requests, *requests[len(pooled) :]]


def recall(exchange: Exchange, requests: Sequence[Request], answers: Sequence[Rows]) -> list[Rows]:
    """Return the rows of `distinct_requests` as an open lookup found them.

    Args:
        exchange: that answered.
        requests: of the lookup.
        answers: to them.
    """
    return exchange.recall(requests, answers) if isinstance(exchange, PooledExchange) else list(answers)


def replay(
    exchange: Exchange, plan: EmbeddingPlan, requests: Sequence[Request], rows: Sequence[Rows]
) -> Future[list[Rows]]:
    """Issue a lookup again whose rows are known.

    Args:
        exchange: that will take the update.
        plan: that made the requests.
        requests: of the lookup.
        rows: of `distinct_requests`.
    """
    if isinstance(exchange, PooledExchange):
        return exchange.replay(requests, rows, len(plan.groups))
    future: Future[list[Rows]] = Future()
    future.set_result(list(rows))
    return future
