"""Control texts: round trips, and bytes that pretend."""

from __future__ import annotations

import pytest

from satrap.errors import ConfigError
from satrap.rpc.wire.frames import FrameError
from satrap.rpc.wire.text import MAX_ANSWER, MAX_TEXT, pack_hello, pack_text, unpack_text


@pytest.mark.parametrize("text", [b"", b"{", b"[1]", b"\xff", b"[" * 100_000, b'{"a": ' + b"9" * 5000 + b"}"])
def test_texts_that_are_no_object_are_refused(text: bytes) -> None:
    with pytest.raises(FrameError, match=r"control text is not (a )?JSON"):
        unpack_text(text)


def test_a_hello_that_no_server_would_read_is_refused_where_it_is_made() -> None:
    assert unpack_text(pack_hello({"tables": ["a"]})) == {"tables": ["a"]}
    with pytest.raises(ConfigError, match=f"takes {MAX_TEXT + 14} bytes"):
        pack_hello({"tables": "x" * MAX_TEXT})
    largest = {"tables": "x" * (MAX_TEXT - 14)}
    assert unpack_text(pack_hello(largest)) == largest


def test_texts_round_trip_and_are_bounded() -> None:
    assert unpack_text(pack_text({"a": [1, "ü"]})) == {"a": [1, "ü"]}
    with pytest.raises(FrameError, match="over the limit"):
        unpack_text(b" " * (MAX_TEXT + 1))
    assert len(unpack_text(b'{"a": "' + b"x" * MAX_TEXT + b'"}', most=MAX_ANSWER)["a"]) == MAX_TEXT
