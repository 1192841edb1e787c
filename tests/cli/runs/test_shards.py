"""`satrap shards` asks a run through its folder, and shows the answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from satrap.errors import StoreError
from satrap.launch.cluster import control_requests
from tests.cli.answering import asked
from tests.cli.command import satrap

SHARDS = [
    {
        "shard": 0,
        "address": "127.0.0.1:40001",
        "buckets": 2048,
        "rows": 33960,
        "bytes": 9637184,
        "traffic": 0.9751,
    },
    {"shard": 2, "address": "127.0.0.1:40002", "buckets": 2048, "rows": 1, "bytes": 2, "traffic": None},
]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_requests, "LOOK_SECONDS", 0.01)


def test_the_shards_are_shown_in_a_table(tmp_path: Path) -> None:
    answer, request = asked(tmp_path, {"epoch": 1, "shards": SHARDS}, "list", tmp_path)
    assert (answer.code, request.command) == (0, "list")
    assert answer.out.splitlines() == [
        "shard  address                buckets          rows             bytes  traffic",
        "    0  127.0.0.1:40001          2,048        33,960         9,637,184    97.5%",
        "    2  127.0.0.1:40002          2,048             1                 2        -",
    ]


@pytest.mark.parametrize(
    ("arguments", "request_"),
    [
        (["add"], ("add", -1, "rows")),
        (["drain", 1], ("drain", 1, "rows")),
        (["balance"], ("balance", -1, "rows")),
        (["balance", "--by", "bytes"], ("balance", -1, "bytes")),
        (["balance", "--by", "traffic"], ("balance", -1, "traffic")),
    ],
)
def test_each_command_asks_for_what_it_says(
    tmp_path: Path, arguments: list[object], request_: tuple[str, int, str]
) -> None:
    said = {"said": "3 rows moved", "shards": SHARDS}
    command, *rest = arguments
    answer, request = asked(tmp_path, said, command, tmp_path, *rest)
    assert (request.command, request.number, request.by) == request_
    assert answer.out.startswith("3 rows moved\n")
    plain, _ = asked(tmp_path, said, command, tmp_path, *rest, "--json")
    assert json.loads(plain.out) == said


def test_a_refusal_is_one_clear_error(tmp_path: Path) -> None:
    error = StoreError("no room for 9 more rows", why="full", fix="give more")
    answer, _ = asked(tmp_path, error, "add", tmp_path)
    answer.assert_refused("no room for 9 more rows", "full", "give more", code=1)


def test_a_folder_in_which_nothing_trains_is_refused(tmp_path: Path) -> None:
    satrap("shards", "list", tmp_path).assert_refused("no run in this folder accepts requests", str(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["balance", "--by", "heat"], "'heat' is not one of 'rows', 'bytes', 'traffic'"),
        (["list", "--by", "rows"], "No such option"),
    ],
)
def test_what_shards_cannot_be_balanced_by_is_refused(tmp_path: Path, arguments: list[str], why: str) -> None:
    answer = satrap("shards", *arguments, tmp_path)
    assert answer.code == 2
    assert why in answer.err
