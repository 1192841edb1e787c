"""What is sent when; that it is right is shown by `tests/contract/test_lookahead.py`."""

from __future__ import annotations

import numpy as np
import pytest

from satrap.exchange.lookahead import with_lookahead
from tests.contract.parties import TABLES, request
from tests.exchange.collective.parties import Together, members, together


def sent(ahead: bool, second: list[int]) -> np.ndarray:
    """Look up two batches on two ranks, and train on both.

    Returns:
        The bytes that both ranks have sent until both lookups were issued, and until the end.
    """
    ranks = members(2, TABLES)
    for rank in ranks if ahead else ():
        with_lookahead(rank)

    def work(r: int) -> list[int]:
        exchange, ids = ranks[r], [list(range(100)), second]
        first, then = (exchange.lookup([request(1, own)], create=True) for own in ids)
        exchange._run(lambda: None)  # behind both
        early = exchange.telemetry.traffic().sent
        exchange.apply(first, [np.ones_like(rows) for rows in first.result()], lr_scale=1.0)
        exchange.apply(then, [np.ones_like(rows) for rows in then.result()], lr_scale=1.0)
        exchange.flush()
        return [early, exchange.telemetry.traffic().sent]

    found = together([lambda r=r: work(r) for r in range(2)])  # type: ignore[misc]
    Together(ranks).close()
    return np.sum(found, axis=0)


@pytest.mark.parametrize(("second", "later"), [(range(200, 300), 0), (range(90, 190), 10), (range(100), 100)])
def test_rows_that_will_change_are_sent_in_their_turn_and_all_once(second: range, later: int) -> None:
    plain, ahead = sent(False, list(second)), sent(True, list(second))
    bits = 2 * 100 / 8
    assert ahead[0] - plain[0] == pytest.approx(bits - later * 4 * 17, abs=8)
    index = 2 * 36  # of the rows that come in their turn
    assert ahead[1] - plain[1] == pytest.approx(bits + index, abs=48)  # the counters' text varies


def test_a_waiting_lookup_is_told_of_a_lost_update() -> None:
    ranks = members(2, TABLES)
    for rank in ranks:
        with_lookahead(rank)

    def work(r: int) -> str:
        exchange, wanted = ranks[r], [request(1, [1, 2])]
        first, then = (exchange.lookup(wanted, create=True) for _ in range(2))
        rows = first.result()
        exchange.apply(first, [np.full_like(one, np.nan if r else 1.0) for one in rows], lr_scale=1.0)
        return str(then.rows.exception(30))

    said = together([lambda r=r: work(r) for r in range(2)])  # type: ignore[misc]
    assert all("NaN" in one and "rank 1" in one for one in said)
    for rank in ranks:
        rank._thread.shutdown()
        rank.shard.close()
