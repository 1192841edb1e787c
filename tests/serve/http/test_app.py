"""Scores over HTTP: equal to `satrap predict` in every protocol, and one clear error for a bad request."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from satrap.config.keys.serving import ServingKeys
from satrap.export import export_items
from satrap.launch.folder.run_folder import RunFolder
from satrap.serve.loadtest.generator import stages_of
from tests.serve.bodies import ARROW, stream
from tests.serve.requests import assert_scores, plain
from tests.serve.served import COLUMNS, Served, model_of, served


def test_by_columns(server: Served, rows: pd.DataFrame, expected: dict[str, list[Any]]) -> None:
    status, answer = server.score({"items": plain(rows)})
    assert status == 200
    assert (answer["model"], answer["step"]) == ("books", server.scorer.model.step)
    assert_scores(answer["predictions"], expected)


def test_by_rows(server: Served, rows: pd.DataFrame, expected: dict[str, list[Any]]) -> None:
    columns = plain(rows)
    items = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    status, answer = server.score({"items": items, "step": server.scorer.model.step})
    assert status == 200
    assert_scores(answer["predictions"], expected)


def test_values_of_the_context_count_for_all_items(
    server: Served, rows: pd.DataFrame, expected: dict[str, list[Any]]
) -> None:
    columns = plain(rows)
    for row in range(len(rows)):
        context = {name: columns[name][row] for name in COLUMNS if name != "book"}
        status, answer = server.score({"context": context, "items": {"book": [columns["book"][row]] * 3}})
        assert status == 200
        assert_scores(answer["predictions"], expected, [row] * 3)


def test_requests_that_wait_are_joined_and_each_gets_its_own_scores(
    server: Served, rows: pd.DataFrame, expected: dict[str, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = server.scorer.statistics.batches
    monkeypatch.setattr(server.scorer, "_alone_seconds", 0)
    columns = plain(rows)

    def ask(start: int) -> tuple[int, Any]:
        part = {name: values[start : start + 5] for name, values in columns.items()}
        return server.score({"items": part})

    starts = [*range(0, 60, 5)] * 8
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(ask, starts))
    for start, (status, answer) in zip(starts, answers, strict=True):
        assert status == 200
        assert_scores(answer["predictions"], expected, slice(start, start + 5))
    assert server.scorer.statistics.batches - before < len(starts)


def test_the_step_is_in_a_header(server: Served, rows: pd.DataFrame) -> None:
    status, headers, _ = server.ask("/v1/score", json.dumps({"items": plain(rows)}))
    assert status == 200
    assert headers["satrap-step"] == str(server.scorer.model.step)


def test_an_answer_says_how_long_each_stage_took(server: Served, rows: pd.DataFrame) -> None:
    begun = time.perf_counter()
    _, headers, _ = server.ask("/v1/score", json.dumps({"items": plain(rows)}))
    whole = time.perf_counter() - begun
    stages = stages_of(headers["server-timing"])
    assert list(stages) == ["parse", "wait", "encode", "lookup", "network", "write"]
    assert min(stages.values()) > 0
    assert sum(stages.values()) < whole
    assert "server-timing" not in server.ask("/v1/score", b"{}")[1], "it was not scored"


def good(rows: pd.DataFrame, count: int = 4) -> dict[str, list[Any]]:
    return {name: values[:count] for name, values in plain(rows).items()}


def without(columns: dict[str, Any], name: str, **others: Any) -> dict[str, Any]:
    return {key: value for key, value in columns.items() if key != name} | others


BAD: dict[str, tuple[Callable[[dict[str, Any]], Any], int, str, str]] = {
    "misspelt": (
        lambda c: {"items": without(c, "price", prise=[1] * 4)},
        422,
        "'prise' is unknown",
        "'price'",
    ),
    "missing": (lambda c: {"items": without(c, "age")}, 422, "'age' is missing", "null"),
    "text for a number": (
        lambda c: {"items": c | {"price": [1, 2, "dear", 4]}},
        422,
        "'dear' is a text",
        "row 3, column 'price'",
    ),
    "text for numbers": (
        lambda c: {"items": c | {"price": ["1", "2", "dear", "4"]}},
        422,
        "dear",
        "row 3, column 'price'",
    ),
    "infinite": (lambda c: {"items": c | {"age": ["inf"] * 4}}, 422, "infinite", "row 1, column 'age'"),
    "no items": (lambda c: {"items": {name: [] for name in c}}, 422, "no items", ""),
    "no rows": (lambda c: {"items": []}, 422, "'user' is missing", ""),
    "too many": (lambda c: {"items": {n: v * 25 for n, v in c.items()}}, 422, "100 items", "50"),
    "uneven": (lambda c: {"items": c | {"age": [1, 2]}}, 422, "'age' has 2 values", "4"),
    "twice": (lambda c: {"context": {"age": 1}, "items": c}, 422, "'age' is given twice", ""),
    "object": (lambda c: {"items": c | {"book": [{}] * 4}}, 422, "", "'book'"),
    "list for one": (lambda c: {"items": c | {"book": [[1, 2]] * 4}}, 422, "", "'book'"),
    "vector": (lambda c: {"items": c | {"picture": [[1, 2]] * 4}}, 422, "2 numbers", "'picture'"),
    "number": (lambda c: {"items": c | {"book": 3}}, 422, "'book' is a number", ""),
    "no object": (lambda c: [1], 422, "no items", ""),
    "context": (lambda c: {"context": 3, "items": c}, 422, "context", ""),
    "key": (lambda c: {"item": 3, "items": c}, 422, "'item'", ""),
    "step": (lambda c: {"items": c, "step": 1 << 40}, 404, "not served", "9"),
}


@pytest.fixture(scope="module")
def limited(run: RunFolder) -> Any:
    with served(model_of(run), ServingKeys(max_items=50, max_bytes=20_000), b"secret") as found:
        yield found


KEY = {"Authorization": "Bearer secret"}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_request_is_one_clear_error(limited: Served, rows: pd.DataFrame, case: str) -> None:
    change, status, what, rest = BAD[case]
    answered, content = limited.score(change(good(rows)), **KEY)
    assert answered == status
    error = content["error"]
    assert what in error["what"]
    assert rest in str(error)


def test_what_is_not_json_is_told_where(limited: Served) -> None:
    status, _, body = limited.ask("/v1/score", '{"items": nothing', KEY)
    assert (status, json.loads(body)["error"]["where"]) == (400, "line 1, column 11")


def test_too_large_a_body_is_refused(limited: Served) -> None:
    for sent in (b" " * 30_000, iter([b" " * 10_000] * 3)):  # in chunks, its length is not known before
        status, _, body = limited.ask("/v1/score", sent, KEY)
        assert status == 413
        assert "20,000 bytes" in json.loads(body)["error"]["what"]


@pytest.mark.parametrize("path", ["/v1/score", "/v1/model", "/v2/models/books/infer", "/v2/models/books"])
def test_without_the_key_nobody_is_answered(limited: Served, path: str) -> None:
    body = None if path.endswith(("model", "books")) else b"{}"
    for headers in ({}, {"Authorization": "Bearer secreT"}, {"Authorization": "Basic secret"}):
        status, answered, _ = limited.ask(path, body, headers)
        assert (status, answered["www-authenticate"]) == (401, "Bearer")


def test_a_deadline_is_a_number(limited: Served) -> None:
    for text in ("soon", "0", "-1", "nan"):
        status, _, body = limited.ask("/v1/score", b"{}", KEY | {"Satrap-Deadline-Ms": text})
        assert (status, json.loads(body)["error"]["where"]) == (400, "Satrap-Deadline-Ms")


def test_the_server_says_what_it_needs(server: Served) -> None:
    status, _, body = server.ask("/v1/model")
    about = json.loads(body)
    assert status == 200
    assert about["columns"] == {
        "user": "id",
        "book": "id",
        "tags": "list of ids",
        "words": "list of ids",
        "time": "id",
        "age": "number",
        "price": "number",
        "picture": "list of ids",
    }
    assert about["predictions"][:2] == ["clicked_probability", "rating_prediction"]


def test_live_and_ready_are_two_answers(server: Served) -> None:
    assert server.ask("/live")[0] == server.ask("/ready")[0] == 200
    server.application.draining = True
    try:
        assert (server.ask("/live")[0], server.ask("/ready")[0]) == (200, 503)
    finally:
        server.application.draining = False


@pytest.fixture(scope="module")
def of_vectors(towers: RunFolder) -> Iterator[Served]:
    with served(model_of(towers)) as found:
        yield found


@pytest.fixture(scope="module")
def exported(
    towers: RunFolder, rows: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """The vectors of `satrap export items`, by tower."""
    folder, found = tmp_path_factory.mktemp("exported"), {}
    rows.to_parquet(folder / "rows.parquet")
    for tower in ("user", "item"):
        output = folder / f"{tower}.parquet"
        export_items(towers, output, [str(folder / "rows.parquet")], tower=tower)
        found[tower] = np.array(pd.read_parquet(output)["vector"].to_list(), np.float32)
    return found


@pytest.mark.parametrize("tower", ["user", "item"])
def test_vectors_in_every_protocol_are_those_of_the_export(
    tower: str, of_vectors: Served, exported: dict[str, Any], rows: pd.DataFrame
) -> None:
    columns = of_vectors.scorer.model.towers[tower].columns
    part, step, wanted = rows[columns], of_vectors.scorer.model.step, exported[tower]
    status, answer = of_vectors.score({"items": plain(part), "step": step}, f"/v1/vectors/{tower}")
    assert status == 200
    assert (answer["model"], answer["step"]) == (f"books.{tower}", step)
    found = np.array(answer["predictions"]["vector"], np.float32)
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)
    arrow = stream(pa.Table.from_pandas(part, preserve_index=False))
    status, headers, body = of_vectors.ask(f"/v1/vectors/{tower}", arrow, ARROW)
    assert (status, headers["satrap-step"]) == (200, str(step))
    table = pa.ipc.open_stream(body).read_all()
    assert table["vector"].type == pa.list_(pa.float32(), 5)
    np.testing.assert_array_equal(np.array(table["vector"].to_pylist(), np.float32), found)
    shown = json.loads(of_vectors.ask("/v1/model")[2])["towers"]
    assert list(shown[tower]) == columns


def test_vectors_by_the_open_inference_protocol(
    of_vectors: Served, exported: dict[str, Any], rows: pd.DataFrame
) -> None:
    """A tower is a model of its own; the price is given, since numbers of this protocol cannot be missing."""
    about = json.loads(of_vectors.ask("/v2/models/books.item")[2])
    assert [each["name"] for each in about["inputs"]] == ["book", "tags", "price"]
    assert about["outputs"] == [{"name": "vector", "datatype": "FP32", "shape": [-1, -1]}]
    row = int(np.flatnonzero(rows["price"].notna() & (rows["tags"].str.len() > 0))[0])
    book, tags, price = rows.iloc[row][["book", "tags", "price"]]
    inputs = [
        {"name": "book", "datatype": "INT64", "shape": [1], "data": [int(book)]},
        {"name": "tags", "datatype": "INT64", "shape": [1, len(tags)], "data": [int(tag) for tag in tags]},
        {"name": "price", "datatype": "FP64", "shape": [1], "data": [price]},
    ]
    for binary in (False, True):
        request = {"inputs": inputs, "parameters": {"binary_data_output": binary}}
        body = json.dumps(request)
        status, headers, content = of_vectors.ask("/v2/models/books.item/infer", body)
        assert status == 200, content
        length = int(headers.get("inference-header-content-length", len(content)))
        answer = json.loads(content[:length])
        [output] = answer["outputs"]
        assert (answer["model_name"], output["shape"], output["datatype"]) == ("books.item", [1, 5], "FP32")
        found = np.frombuffer(content[length:], "<f4") if binary else output["data"]
        np.testing.assert_allclose(found, exported["item"][row], rtol=1e-6, atol=1e-6)


def test_scores_and_vectors_that_wait_are_computed_apart(
    of_vectors: Served, exported: dict[str, Any], rows: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_vectors.scorer, "_alone_seconds", 0)
    model = of_vectors.scorer.model
    asked = {"/v1/score": model.columns} | {
        f"/v1/vectors/{tower}": served_.columns for tower, served_ in model.towers.items()
    }
    with ThreadPoolExecutor(16) as pool:
        answers = pool.map(
            lambda path: (path, *of_vectors.score({"items": plain(rows[asked[path]])}, path)), [*asked] * 8
        )
    for path, status, answer in answers:
        assert status == 200
        if path == "/v1/score":
            scores = np.array(answer["predictions"]["clicked_probability"])
            products = (exported["user"] * exported["item"]).sum(1)
            assert np.argsort(scores).tolist() == np.argsort(products).tolist()
        else:
            tower = path.rpartition("/")[2]
            np.testing.assert_allclose(answer["predictions"]["vector"], exported[tower], rtol=1e-6, atol=1e-6)


def test_vectors_that_a_model_lacks_are_refused(server: Served, of_vectors: Served) -> None:
    status, answer = server.score({"items": {}}, "/v1/vectors/user")
    assert (status, answer["error"]["what"]) == (404, "model 'books' has no vectors")
    status, answer = of_vectors.score({"items": {}}, "/v1/vectors/users")
    assert (status, answer["error"]["fix"]) == (404, "did you mean 'user'? towers: user, item")
    status, answer = of_vectors.score({"items": {"price": [3]}}, "/v1/vectors/user")
    assert (status, answer["error"]["what"]) == (422, "column 'price' is unknown")
    assert of_vectors.ask("/v2/models/books.users")[0] == 404
    assert "towers" not in json.loads(server.ask("/v1/model")[2])
