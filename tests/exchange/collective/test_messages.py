from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from satrap.errors import CheckpointError, ExchangeError, StoreError
from satrap.exchange.collective import Alone
from satrap.exchange.collective.messages import Channel, Operation
from tests.exchange.collective.parties import Meeting, ThreadRanks, together


def channels(size: int) -> list[Channel]:
    meeting = Meeting(size)
    return [Channel(ThreadRanks(meeting, rank)) for rank in range(size)]


def test_each_rank_gets_what_the_others_sent_to_it() -> None:
    ends = channels(3)

    def one(rank: int) -> list[list[int]]:
        parts = [np.full(rank + to, 10 * rank + to, np.uint8) for to in range(3)]
        return [part.tolist() for part in ends[rank].talk(Operation.ROWS, parts)]

    found = together([lambda r=r: one(r) for r in range(3)])  # type: ignore[misc]
    assert found == [[[10 * rank + to] * (rank + to) for rank in range(3)] for to in range(3)]
    assert [(end.sent, end.received) for end in ends] == [(3, 3), (4, 4), (5, 5)]  # without what stays here


def test_an_error_of_one_is_raised_by_all_with_its_rank_and_they_go_on() -> None:
    ends = channels(2)

    def work(rank: int) -> dict[str, Any]:
        if rank:
            raise CheckpointError("the disk is full", where="/there", fix="make room")
        return {"rank": rank}

    def one(rank: int) -> list[dict[str, Any]]:
        with pytest.raises(CheckpointError, match="the disk is full") as caught:
            ends[rank].ask(Operation.WRITTEN, lambda: work(rank))
        assert (caught.value.where, caught.value.fix) == ("rank 1: /there", "make room")
        return ends[rank].tell(Operation.WRITE, {"rank": rank})

    assert together([lambda: one(0), lambda: one(1)]) == [[{"rank": 0}, {"rank": 1}]] * 2


def test_who_is_at_another_operation_is_named_and_the_channel_is_closed() -> None:
    ends = channels(2)

    def one(rank: int) -> None:
        with pytest.raises(ExchangeError, match=f"rank {1 - rank} is at operation 0") as caught:
            ends[rank].tell((Operation.FLUSH, Operation.CUT)[rank], {})
        assert ("cut", "flush")[rank] in caught.value.what
        with pytest.raises(ExchangeError, match="is at operation 0"):
            ends[rank].tell(Operation.FLUSH, {})

    together([lambda: one(0), lambda: one(1)])


def test_a_process_alone_hears_itself() -> None:
    channel = Channel(Alone())
    assert channel.tell(Operation.FLUSH, {"x": 1}) == [{"x": 1}]
    with pytest.raises(StoreError, match="no"):
        channel.talk(Operation.UPDATE, StoreError("no"))
    assert channel.talk(Operation.ROWS, [np.arange(3, dtype=np.uint8)])[0].tolist() == [0, 1, 2]
