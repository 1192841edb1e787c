"""Arrow streams: the same scores, and clear errors for what is not a stream."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from tests.serve.bodies import ARROW, stream
from tests.serve.requests import assert_scores
from tests.serve.served import Served


def test_arrow(server: Served, rows: pd.DataFrame, expected: dict[str, list[Any]]) -> None:
    table = pa.Table.from_pandas(rows, preserve_index=False)
    status, headers, body = server.ask("/v1/score", stream(table), ARROW)
    assert (status, headers["content-type"]) == (200, ARROW["Content-Type"])
    answer = pa.ipc.open_stream(body).read_all()
    assert answer.schema.metadata[b"step"].decode() == headers["satrap-step"]
    assert_scores(answer.to_pydict(), expected)


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (lambda table: b"nothing", "not an Arrow stream"),
        (lambda table: stream(table)[:-300], "not an Arrow stream"),
        (lambda table: stream(table, compression="zstd"), "compressed"),
        (lambda table: stream(table.slice(0, 0)), "no items"),
        (lambda table: stream(table.drop(["age"])), "'age' is missing"),
        (lambda table: stream(table.append_column("age", table["age"])), "twice"),
    ],
)
def test_what_is_wrong_with_arrow_is_told(server: Served, rows: pd.DataFrame, body: Any, what: str) -> None:
    table = pa.Table.from_pandas(rows, preserve_index=False)
    status, _, answer = server.ask("/v1/score", body(table), ARROW)
    assert status in (400, 422)
    assert what in json.loads(answer)["error"]["what"]
