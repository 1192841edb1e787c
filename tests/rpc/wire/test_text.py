"""Control texts, and arrays behind them: round trips, and bytes that pretend."""

from __future__ import annotations

import numpy as np
import pytest

from satrap.errors import ConfigError
from satrap.rpc.wire.frames import FrameError
from satrap.rpc.wire.text import (
    MAX_ANSWER,
    MAX_TEXT,
    pack_arrays,
    pack_hello,
    pack_text,
    unpack_arrays,
    unpack_text,
)


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


@pytest.mark.parametrize("sizes", [[], [0], [3], [40, 0, 1]])
@pytest.mark.parametrize("shift", [0, 1])
def test_arrays_come_whole_out_of_their_parts(sizes: list[int], shift: int) -> None:
    arrays = {f"a{i}": np.arange(2 * n, dtype=np.uint64).reshape(2, n) * 3 + i for i, n in enumerate(sizes)}
    text, *parts = pack_arrays(arrays, {"about": 1})
    moved = [memoryview(bytearray(b"x" * shift + bytes(memoryview(p))))[shift:] for p in parts]
    assert unpack_text(text)["about"] == 1
    whole = unpack_arrays(unpack_text(text), moved)
    assert whole.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(whole[name], array)
        assert whole[name].flags.aligned


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ({}, []),
        ({"arrays": 3}, []),
        ({"arrays": {"a": ["<u8", [2]]}}, []),
        ({"arrays": {"a": ["<u8", [2]]}}, [b"123"]),
        ({"arrays": {"a": ["|O", [2]]}}, [b"123"]),
        ({"arrays": {"a": ["<u8", [-2]]}}, [b""]),
        ({"arrays": {"a": ["<u8", [1 << 62, 1 << 62]]}}, [b"12345678"]),
        ({"arrays": {"a": 7}}, [b""]),
    ],
)
def test_arrays_that_cannot_be_meant_are_refused(text: dict[str, object], parts: list[bytes]) -> None:
    with pytest.raises(FrameError):
        unpack_arrays(text, parts)
