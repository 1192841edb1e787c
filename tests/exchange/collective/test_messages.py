from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from satrap.errors import CheckpointError, ExchangeError, StoreError
from satrap.exchange.collective import Alone
from satrap.exchange.collective.messages import Channel, Operation
from tests.exchange.collective.parties import Meeting, ThreadRanks, together
from tests.support.examples import examples


def channels(size: int) -> list[Channel]:
    meeting = Meeting(size)
    return [Channel(ThreadRanks(meeting, rank)) for rank in range(size)]


def test_each_rank_gets_what_the_others_sent_to_it() -> None:
    ends = channels(3)

    def one(rank: int) -> list[list[int]]:
        messages = [[np.full(rank + to, 10 * rank + to, np.uint8)] for to in range(3)]
        return [part.tolist() for [part] in ends[rank].talk(Operation.ROWS, messages)]

    found = together([lambda r=r: one(r) for r in range(3)])  # type: ignore[misc]
    assert found == [[[10 * rank + to] * (rank + to) for rank in range(3)] for to in range(3)]
    assert [(end.sent, end.received) for end in ends] == [(3, 3), (4, 4), (5, 5)]  # without what stays here


@settings(deadline=None, max_examples=examples(30))
@given(st.integers(2, 4), st.lists(st.integers(0, 3000), min_size=1, max_size=12), st.integers(0, 2**32))
def test_messages_of_any_length_arrive_whole_in_one_or_two_rounds(
    size: int, lengths: list[int], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    turns = [(Operation(int(rng.integers(1, 6))), rng.poisson(n, (size, size))) for n in lengths]
    ends = channels(size)

    def one(rank: int) -> None:
        for turn, (operation, sizes) in enumerate(turns):
            whole = [np.full(sizes[rank, to], (rank + 5 * to + turn) % 256, np.uint8) for to in range(size)]
            messages = [np.array_split(bytes_, turn % 4 + 1) for bytes_ in whole]
            for other, parts in enumerate(ends[rank].talk(operation, messages)):
                assert len(parts) == turn % 4 + 1
                assert [len(part) for part in parts] == [
                    len(part) for part in np.array_split(np.empty(sizes[other, rank]), turn % 4 + 1)
                ]
                assert all((part == (other + 5 * rank + turn) % 256).all() for part in parts)
                assert other == rank or all(part.ctypes.data % 8 == 0 for part in parts)

    together([lambda r=r: one(r) for r in range(size)])  # type: ignore[misc]


def test_a_message_like_the_one_before_takes_one_round() -> None:
    ends, rounds = channels(2), [0]
    send = ends[0].ranks.all_to_all

    def counted(*arguments: Any) -> Any:
        rounds[0] += 1
        return send(*arguments)

    ends[0].ranks.all_to_all = counted  # type: ignore[method-assign]

    def one(rank: int) -> list[int]:
        after = []
        for size in (1000, 1010, 1500, 100, 1000):
            for operation in (Operation.LOOKUP, Operation.ROWS):
                ends[rank].talk(operation, [[np.zeros(size, np.uint8)]] * 2)
            after.append(rounds[0])
        return after

    # The first two messages and the first after ROWS need two rounds; 1010 bytes fit where 1000 were sent;
    # 1500 do not, nor do 1000 after 100.
    assert together([lambda: one(0), lambda: one(1)])[0] == [4, 7, 11, 13, 17]


def test_an_error_of_one_is_raised_by_all_with_its_rank_and_they_go_on() -> None:
    ends = channels(2)

    def work(rank: int) -> dict[str, Any]:
        if rank:
            raise CheckpointError("the disk is full", where="/there", fix="make room")
        return {"rank": rank}

    def one(rank: int) -> list[dict[str, Any]]:
        with pytest.raises(CheckpointError, match="the disk is full") as caught:
            ends[rank].ask(Operation.HELLO, lambda: work(rank))
        assert (caught.value.where, caught.value.fix) == ("rank 1: /there", "make room")
        return ends[rank].tell(Operation.FLUSH, {"rank": rank})

    assert together([lambda: one(0), lambda: one(1)]) == [[{"rank": 0}, {"rank": 1}]] * 2


def test_who_is_at_another_operation_is_named_and_the_channel_is_closed() -> None:
    ends = channels(2)

    def one(rank: int) -> None:
        with pytest.raises(ExchangeError, match=f"rank {1 - rank} is at operation 0") as caught:
            ends[rank].tell((Operation.FLUSH, Operation.UPDATE)[rank], {})
        assert ("update", "flush")[rank] in caught.value.what
        with pytest.raises(ExchangeError, match="is at operation 0"):
            ends[rank].tell(Operation.FLUSH, {})

    together([lambda: one(0), lambda: one(1)])


def test_a_process_alone_hears_itself() -> None:
    channel = Channel(Alone())
    assert channel.tell(Operation.FLUSH, {"x": 1}) == [{"x": 1}]
    with pytest.raises(StoreError, match="no"):
        channel.talk(Operation.UPDATE, StoreError("no"))
    assert channel.talk(Operation.ROWS, [[np.arange(3, dtype=np.uint8)]])[0][0].tolist() == [0, 1, 2]
