"""What was answered is written down so that it can be scored, and learnt from, again."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from satrap.data.streams import FolderLog, read_stream
from satrap.launch.folder.run_folder import RunFolder
from satrap.schema import Categorical, Schema
from satrap.serve import request_log
from satrap.serve.request_log import RequestLog
from satrap.train import Predictor
from tests.serve.requests import plain
from tests.serve.served import Served


@contextmanager
def logged(server: Served, log: RequestLog) -> Iterator[None]:
    """Have a server write down its answers; at the end everything is written."""
    with log:
        server.application.log = log
        try:
            yield
        finally:
            server.application.log = None


def post(server: Served, request: Any, **headers: str) -> tuple[int, Any, dict[str, str]]:
    """Return status, content and headers of an answer; headers are given with _ in place of -."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    status, found, body = server.ask("/v1/score", json.dumps(request), named)
    return status, json.loads(body), found


def read(folder: Path) -> list[pa.Table]:
    return [pa.ipc.open_file(path).read_all() for path in sorted(folder.rglob("*.arrow"))]


def test_a_logged_row_is_scored_again_as_it_was(
    run: RunFolder, server: Served, rows: pd.DataFrame, tmp_path: Path
) -> None:
    """Requests by columns, by rows with a context, and as Arrow; the log is read as a run would read it."""
    columns = plain(rows)
    items = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    context = {name: items[9].pop(name) for name in ("user", "time", "tags")}
    log = RequestLog(str(tmp_path))
    with logged(server, log):
        status, answer, headers = post(server, {"items": columns}, satrap_request_id="mine")
        assert (status, headers["satrap-request-id"]) == (200, "mine")
        assert server.score({"context": context, "items": [items[9]]})[0] == 200
        assert server.score({"items": {**columns, "book": [str(book) for book in columns["book"]]}})[0] == 200
        assert server.score({"items": {**columns, "age": ["x"] * 60}})[0] == 422
    assert (log.statistics.written, log.statistics.lost) == (121, 0)
    written = pd.concat([table.to_pandas() for table in read(tmp_path)])
    first = written[written["satrap_id"].str.startswith("mine:")]
    assert first["satrap_id"].tolist() == [f"mine:{row}" for row in range(60)]
    assert set(written["satrap_step"]) == {answer["step"]}
    assert first["satrap_time"].between(1.7e9, 1e10).all()
    np.testing.assert_array_equal(
        first["clicked_probability"], np.array(answer["predictions"]["clicked_probability"], np.float32)
    )
    predictor = Predictor.load(str(run.path))
    schema = Schema((), predictor.schema.features, salt=predictor.schema.salt)
    stream = read_stream(FolderLog(str(tmp_path)), schema, time="satrap_time")
    batches = [batch for batch in stream.batches() if batch is not None]
    scores = np.concatenate(list(predictor.predict_batches(batches)))
    predictor.close()
    np.testing.assert_allclose(scores, written[list(answer["predictions"])], rtol=1e-6, atol=1e-6)


def test_a_running_server_writes_without_waiting_for_its_end(
    server: Served, rows: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_log, "SECONDS", 0.05)
    log = RequestLog(str(tmp_path))
    with logged(server, log):
        assert post(server, {"items": plain(rows)})[0] == 200
        deadline = time.monotonic() + 30
        while not log.statistics.written and time.monotonic() < deadline:
            time.sleep(0.02)
        assert log.statistics.written == 60


def test_a_share_of_the_requests_is_logged(server: Served, rows: pd.DataFrame, tmp_path: Path) -> None:
    columns = {name: values[:2] for name, values in plain(rows).items()}
    log, named = RequestLog(str(tmp_path), share=0.5), 0
    with logged(server, log):
        for _ in range(60):
            _, _, headers = post(server, {"items": columns})
            named += "satrap-request-id" in headers
    assert 10 < named < 50
    assert log.statistics.written == 2 * named
    ids = [name for table in read(tmp_path) for name in table.column("satrap_id").to_pylist()]
    assert len(set(ids)) == 2 * named


def test_what_cannot_be_written_is_counted_and_said_once(
    server: Served, rows: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_log, "SECONDS", 0.01)
    monkeypatch.setattr(request_log, "MOST_ITEMS", 3)
    (tmp_path / "file").write_text("")
    columns, said = plain(rows), list[str]()
    two = {name: values[:2] for name, values in columns.items()}
    log = RequestLog(str(tmp_path / "file" / "log"), notice=said.append)
    with logged(server, log):
        for body in (two, columns, two, two):
            assert post(server, {"items": body})[0] == 200
    assert (log.statistics.written, log.statistics.lost) == (0, 66)
    [line] = said
    assert "the request log has gaps" in line


@pytest.mark.parametrize("name", ["x" * 129, "ä"])
def test_a_name_that_is_not_plain_is_replaced(
    server: Served, rows: pd.DataFrame, tmp_path: Path, name: str
) -> None:
    columns = {column: values[:1] for column, values in plain(rows).items()}
    with logged(server, RequestLog(str(tmp_path))):
        _, _, headers = post(server, {"items": columns}, satrap_request_id=name)
    assert len(headers["satrap-request-id"]) == 16


def test_an_object_store_gets_whole_files(server: Served, rows: pd.DataFrame) -> None:
    columns, place = plain(rows), "memory://request-log-of-a-test"
    with logged(server, RequestLog(place)):
        assert server.score({"items": columns})[0] == 200
    schema = Schema((), {"book": Categorical(dim=2)})
    [batch] = read_stream(FolderLog(place), schema).batches()
    assert batch is not None
    assert batch.size == 60
