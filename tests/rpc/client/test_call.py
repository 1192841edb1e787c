"""A call is completed once: by what comes first."""

from __future__ import annotations

import pytest

from satrap.errors import ExchangeError, StoreError
from satrap.rpc.client.call import Call, told
from satrap.rpc.wire.text import pack_text


def test_the_first_answer_counts() -> None:
    call: Call[list[bytes]] = Call()
    call.answer([b"a"], None)
    call.answer([b"b"], None)
    call.fail(ExchangeError("too late"))
    assert call.future.result() == [b"a"]


def test_a_caller_cannot_cancel_what_is_under_way() -> None:
    call: Call[None] = Call()
    assert not call.future.cancel()


@pytest.mark.parametrize("bad", [None, 0, 2])
def test_a_call_of_several_answers_ends_with_the_last_or_the_first_error(bad: int | None) -> None:
    call: Call[str] = Call()
    call.expect(3, "all")
    for number in range(3):
        assert call.future.done() == (bad is not None and number > bad)
        call.count([], StoreError("refused") if number == bad else None)
    if bad is None:
        assert call.future.result() == "all"
    else:
        with pytest.raises(StoreError, match="refused"):
            call.future.result()


def test_an_answer_in_words() -> None:
    assert told([pack_text({"a": 1}), b"more"]) == {"a": 1}
    with pytest.raises(ExchangeError, match="without parts"):
        told([])
