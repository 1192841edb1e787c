"""The Open Inference Protocol, in JSON and in binary: the same scores, and clear errors."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.serve.bodies import INFER, binary_request, tensors
from tests.serve.requests import assert_scores
from tests.serve.served import Served


def test_open_inference_in_json(server: Served, alike: tuple[pd.DataFrame, dict[str, list[Any]]]) -> None:
    table, expected = alike
    inputs = [
        {"name": name, "datatype": kind, "shape": shape, "data": values}
        for name, (kind, shape, values) in tensors(table).items()
    ]
    status, answer = server.score({"id": "x", "inputs": inputs}, INFER)
    assert status == 200
    assert (answer["id"], answer["model_version"]) == ("x", str(server.scorer.model.step))
    assert_scores({output["name"]: output["data"] for output in answer["outputs"]}, expected)
    assert {output["datatype"] for output in answer["outputs"]} == {"FP64"}
    inputs[2]["data"] = [[*values] for values in np.array(inputs[2]["data"]).reshape(-1, 2).tolist()]
    assert server.score({"inputs": inputs}, INFER)[1]["outputs"] == answer["outputs"]


def test_open_inference_in_binary(server: Served, alike: tuple[pd.DataFrame, dict[str, list[Any]]]) -> None:
    table, expected = alike
    body, headers = binary_request(table, parameters={"binary_data_output": True})
    status, answered, content = server.ask(
        f"/v2/models/books/versions/{server.scorer.model.step}/infer", body, headers
    )
    assert status == 200, content
    length = int(answered["inference-header-content-length"])
    at, found = length, {}
    for output in json.loads(content[:length])["outputs"]:
        size = output["parameters"]["binary_data_size"]
        found[output["name"]] = np.frombuffer(content[at : at + size], "<f8").tolist()
        at += size
    assert at == len(content)
    assert_scores(found, expected)


def test_the_context_is_an_input_of_one_item(
    server: Served, alike: tuple[pd.DataFrame, dict[str, list[Any]]]
) -> None:
    table, expected = alike
    one = tensors(table.iloc[4:5])
    one["book"] = ("INT64", [3], one["book"][2] * 3)
    inputs = [
        {"name": name, "datatype": kind, "shape": shape, "data": values}
        for name, (kind, shape, values) in one.items()
    ]
    asked = {"inputs": inputs, "outputs": [{"name": "rating_prediction"}]}
    status, answer = server.score(asked, INFER)
    assert status == 200
    [output] = answer["outputs"]
    np.testing.assert_allclose(output["data"], [expected["rating_prediction"][4]] * 3, rtol=1e-6)


def test_what_others_ask_before_they_send_a_request(server: Served) -> None:
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/books/ready"):
        assert server.ask(path)[0] == 200
    assert json.loads(server.ask("/v2")[2])["extensions"] == ["binary_tensor_data"]
    about = json.loads(server.ask("/v2/models/books")[2])
    assert about["versions"] == [str(server.scorer.model.step)]
    assert about["inputs"][0] == {"name": "user", "datatype": "BYTES", "shape": [-1]}
    for path in ("/v2/models/book", "/v2/models/books/versions/77777777"):
        assert server.ask(path)[0] == 404


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"shape": [61]}, "60 values, and shape [61] needs 61"),
        ({"shape": [4, 3, 5]}, "shape"),
        ({"shape": "many"}, "shape"),
        ({"datatype": "INT65"}, "did you mean 'INT64'"),
        ({"datatype": "INT64", "data": ["x"] * 60}, "not INT64"),
        ({"name": "user"}, "used twice"),
        ({"name": "booc"}, "'booc' is unknown"),
        ({"shape": [2], "data": [1, 2]}, "has 2 items, and another input has 60"),
        ({"parameters": {"binary_data_size": 9}}, "binary_data_size"),
    ],
)
def test_a_bad_tensor_is_one_clear_error(
    server: Served, alike: tuple[pd.DataFrame, dict[str, list[Any]]], change: dict[str, Any], what: str
) -> None:
    inputs = [
        {"name": name, "datatype": kind, "shape": shape, "data": values}
        for name, (kind, shape, values) in tensors(alike[0]).items()
    ]
    inputs[1] |= change
    status, answer = server.score({"inputs": inputs}, INFER)
    assert status in (400, 422)
    assert what in answer["error"]
