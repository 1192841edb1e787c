"""Columns taken out of a JSON text: what orjson says of the same text, or nothing."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from satrap.serve.protocols import json as protocol
from satrap.serve.protocols.json_numbers import LEAST_BYTES, scanned
from tests.serve.requests import plain
from tests.serve.served import COLUMNS, Served, frame


def as_json(values: Any) -> Any:
    return values.tolist() if isinstance(values, np.ndarray) else values


def same(body: bytes) -> bool:
    """Check what is scanned of a text against orjson; return whether it was."""
    if (found := scanned(body)) is None:
        return False
    expected = orjson.loads(body)
    context, items = found
    assert set(expected) <= {"context", "items"}
    assert context == expected.get("context", {})
    assert list(items) == list(expected["items"])
    for name, values in items.items():
        theirs = expected["items"][name]
        if isinstance(values, np.ndarray) and values.dtype == np.float64:
            assert float in set(map(type, theirs))
            theirs = [float(value) for value in theirs]
        assert repr(as_json(values)) == repr(theirs), "equal to the bit, minus zero too"
    return True


numbers = st.one_of(
    st.integers(-(2**63), 2**64 - 1),
    st.integers(-1000, 1000),
    st.floats(allow_nan=False, allow_infinity=False),
    st.decimals(-(10**6), 10**6, places=4, allow_nan=False).map(float),
)
values = st.one_of(numbers, st.text(max_size=4), st.none(), st.booleans(), st.lists(numbers, max_size=2))
columns = st.dictionaries(
    st.text(max_size=4),
    st.one_of(
        st.lists(numbers, max_size=6),
        st.lists(st.integers(0, 10**9), max_size=6),
        st.lists(values, max_size=4),
    ),
    max_size=5,
)


@settings(deadline=None)  # the first one may compile
@given(
    columns,
    st.dictionaries(st.text(max_size=3), values, max_size=3),
    st.booleans(),
    st.sampled_from([None, 1]),
)
def test_any_request_is_what_orjson_reads(
    items: dict[str, Any], context: dict[str, Any], first: bool, indent: int | None
) -> None:
    parts = {"items": items, "context": context} if first else {"context": context, "items": items}
    for ascii_only in (True, False):
        text = json.dumps(parts, indent=indent, ensure_ascii=ascii_only)
        try:
            body = text.encode()
        except UnicodeEncodeError:
            continue
        same(body)


NUMBERS = """
0 -0 -0.0 7 -7 1.5 0.1 123456.7891 8999999999999999999 -8999999999999999999 9223372036854775807
9007199254740993 999999999999999999 0.1234567890123456 1e5 1E-3 2.5e-310
12345678901234567890 8999999999999999999.5 89999999999999999999 9007199254740993.5 0.30000000000000004
"""
OTHERS = r"""
{
[]
{}
{"items":3}
{"items":[]}
{"items":{}}
{"context":{}}
{"items":{"a":[1]},"step":3}
{"items":{"a":[1]},"items":{"a":[2]}}
{"context":3,"items":{"a":[1]}}
{"items":{"a":[1,]}}
{"items":{"a":[01]}}
{"items":{"a":[1.]}}
{"items":{"a":[.5]}}
{"items":{"a":[+1]}}
{"items":{"a":[1 2]}}
{"items":{"a":[1]}}x
{"items":{"a":[1]},}
{"items":{"a":[1],}}
{"items":{"a":[1}}
{"items":{"a":[1]
{"items":{"a":[--1]}}
{"items":{"a":[1e400]}}
{"items":{"a":["\ud800"]}}
{"items":{"a\n":[1]}}
{"items":{"a":5}}
"""


@pytest.mark.parametrize("number", NUMBERS.split())
def test_numbers_are_rounded_as_by_orjson(number: str) -> None:
    assert same(f'{{"items":{{"a":[{number}, {number}],"b":[1.5,{number}],"c":[1,2]}}}}'.encode())


@pytest.mark.parametrize("text", OTHERS.splitlines())
def test_other_texts_are_left_to_orjson(text: str) -> None:
    assert scanned(text.encode()) is None


def test_damaged_texts_are_never_read_as_something_else() -> None:
    chosen = random.Random(3)
    body = json.dumps(
        {
            "context": {"u": "x", "n": None},
            "items": {"a": [1, 22, 333], "b": [1.5, 2, -3.25], "c": ["x", None]},
        }
    ).encode()
    assert same(body)
    read = 0
    for _ in range(20_000):
        damaged = bytearray(body)
        for _ in range(chosen.randrange(1, 4)):
            damaged[chosen.randrange(len(body))] = chosen.choice(b'0123456789.,:-+eE"\\[]{} \n\x00\x80')
        end = chosen.randrange(len(body) // 2, len(body) + 1) if chosen.random() < 0.1 else len(body)
        try:
            read += same(bytes(damaged[:end]))
        except orjson.JSONDecodeError:
            pytest.fail(f"read what is no JSON: {bytes(damaged[:end])!r}")
    assert read > 500


def test_requests_of_arrays_score_as_those_of_lists(server: Served) -> None:
    model, rows = server.scorer.model, frame(200, seed=4)
    body = json.dumps(
        {"context": {"age": 33}, "items": {k: v for k, v in plain(rows[COLUMNS]).items() if k != "age"}}
    ).encode()
    assert len(body) >= LEAST_BYTES
    asked = protocol.read(body, model, max_items=1000)
    assert any(isinstance(values, np.ndarray) for values in asked.items.values())
    lists = protocol.read(body.replace(b'{"context"', b'{"step":null,"context"', 1), model, max_items=1000)
    assert not any(isinstance(values, np.ndarray) for values in lists.items.values())
    alone = model.score(model.encode([lists]))
    for requests in ([asked], [asked, lists], [lists, asked, asked]):
        scores = model.score(model.encode(requests))
        for part in np.split(scores, len(requests)):
            np.testing.assert_allclose(part, alone, rtol=1e-6, atol=1e-6)
