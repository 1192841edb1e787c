"""`satrap bench serve`: what it prints, and exit codes that tell the truth."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from satrap.launch.folder.run_folder import RunFolder
from tests.cli.command import satrap
from tests.serve.served import Served, frame, model_of, served, trained


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return trained(tmp_path_factory.mktemp("bench"))


@pytest.fixture(scope="module")
def server(run: RunFolder) -> Iterator[Served]:
    with served(model_of(run)) as found:
        yield found


@pytest.fixture(scope="module")
def asked(server: Served, tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    source = tmp_path_factory.mktemp("rows") / "rows.parquet"
    frame(100, seed=3).to_parquet(source)
    host, port = server.address
    return ["bench", "serve", f"http://{host}:{port}", "--input", source, "--rate", 50, "--seconds", 0.5]


def test_a_load_test_is_printed(asked: list[object], run: RunFolder) -> None:
    answer = satrap(*asked, "--items", 9, "--run", run.path)
    assert answer.code == 0, answer.out
    assert "due at 50 per second, up to 9 items each" in answer.out
    assert "\n  network p50 " in answer.out
    assert "\nsteps     8, never decreasing\n" in answer.out
    assert "match satrap predict within 1e-06" in answer.out
    assert "sending 50 requests per second" in answer.err
    found = json.loads(satrap(*asked, "--json").out)
    assert found["right"] is True
    assert found["steps"] == [8]


def test_failures_have_exit_code_1(
    asked: list[object], server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.scorer, "_max_queue", 0)
    answer = satrap(*asked)
    assert answer.code == 1
    assert " failed: 503" in answer.out


def test_mistakes_are_one_error(asked: list[object], tmp_path: Path) -> None:
    satrap(*asked, "--context", "usr").assert_refused("'usr' is not a column", "did you mean 'user'")
    satrap(*asked, "--run", tmp_path).assert_refused("not a run folder")
    satrap("bench", "serve", "127.0.0.1:9", "--input", "x", "--rate", 1).assert_refused("does not answer")
    assert satrap("bench", "serve", "127.0.0.1:9", "--input", "x", "--rate", 0).code == 2
