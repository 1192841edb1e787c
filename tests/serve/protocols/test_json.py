"""Any JSON, and damaged bodies of every protocol: an answer, and a server that lives."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.serve.bodies import ARROW, INFER, binary_request, stream
from tests.serve.requests import plain
from tests.serve.served import Served


@settings(deadline=None)
@given(data=st.data())
def test_damaged_bodies_are_refused_and_the_server_lives(
    server: Served, alike: tuple[pd.DataFrame, dict[str, list[Any]]], data: st.DataObject
) -> None:
    table = alike[0]
    kind = data.draw(st.sampled_from(["json", "arrow", "tensors", "binary"]))
    path, headers, body = "/v1/score", dict[str, str](), b""
    if kind == "json":
        body = json.dumps({"items": plain(table)}).encode()
    elif kind == "arrow":
        body, headers = stream(pa.Table.from_pandas(table, preserve_index=False)), ARROW
    else:
        body, headers = binary_request(table)
        path = INFER
    damaged = bytearray(body)
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        if data.draw(st.booleans()):
            damaged[at] = data.draw(st.integers(0, 255))
        else:
            del damaged[at : at + data.draw(st.integers(1, 50))]
    status, _, answer = server.ask(path, bytes(damaged), headers)
    assert status in (200, 400, 404, 413, 422), answer
    assert server.ask("/ready")[0] == 200


@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
        max_leaves=10,
    ),
    st.sampled_from(["items", "context", "column", "inputs"]),
)
def test_any_json_is_answered(server: Served, rows: pd.DataFrame, value: Any, place: str) -> None:
    columns = {name: values[:1] for name, values in plain(rows).items()}
    if place == "column":
        request: Any = {"items": columns | {"book": [value], "price": [value]}}
    else:
        request = {"items": columns, place: value}
    status, headers, _ = server.ask(INFER if place == "inputs" else "/v1/score", json.dumps(request))
    assert status in (200, 400, 404, 422)
    assert headers["content-type"] == "application/json"
