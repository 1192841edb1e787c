"""Printed requests are valid, whatever the columns hold."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

from satrap.errors import ConfigError
from satrap.launch.folder.run_folder import RunFolder
from satrap.serve.scoring.example import example_of, plain_values
from tests.serve.served import Served, frame


def test_a_request_with_rows_of_the_data_is_answered(server: Served, run: RunFolder) -> None:
    request = example_of(run, [], 10)
    status, answer = server.score(json.loads(json.dumps(request)))
    assert status == 200
    assert len(answer["predictions"]["clicked_probability"]) == 10


def test_a_model_without_its_run_needs_rows(server: Served, run: RunFolder, tmp_path: Path) -> None:
    saved = RunFolder.open(run.model)
    with pytest.raises(ConfigError, match="no rows are available"):
        example_of(saved, [], 10)
    frame(7).to_parquet(tmp_path / "rows.parquet")
    status, answer = server.score(example_of(saved, [str(tmp_path / "rows.parquet")], 10))
    assert (status, len(answer["predictions"]["clicked_probability"])) == (200, 7)


def test_values_become_those_of_json() -> None:
    moment = datetime.datetime(2024, 1, 31, 8, 5)
    columns = {
        "whole": pa.array([1, None]),
        "float": pa.array([0.5, float("nan")]),
        "time": pa.array([moment, None]),
        "bytes": pa.array([b"a", b"\xff"]),
        "lists": pa.array([[1, 2], None]),
        "dictionary": pa.array(["a", "b"]).dictionary_encode(),
        "frame": pa.array(pd.Series([True, False])),
    }
    found = {name: plain_values(pa.chunked_array([column])) for name, column in columns.items()}
    assert found == {
        "whole": [1, None],
        "float": [0.5, None],
        "time": ["2024-01-31 08:05:00", None],
        "bytes": ["a", "�"],
        "lists": [[1, 2], None],
        "dictionary": ["a", "b"],
        "frame": [True, False],
    }
    json.dumps(found, allow_nan=False)
