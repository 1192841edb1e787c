from __future__ import annotations

import json
import subprocess
import sys

import pytest

from satrap.errors import ConfigError, DataError
from satrap.runtime.events import Event, Failed, MetricsServed, Notice, Ready, Recovering, decode, encode


@pytest.mark.parametrize(
    "event", [Ready("h:1"), MetricsServed("h:2"), Recovering("snapshot 3"), Notice("two\nlines")]
)
def test_an_event_passes_on_one_line(event: Event) -> None:
    line = encode(event)
    assert "\n" not in line
    assert decode(line) == event


def test_an_error_keeps_its_type_and_its_parts() -> None:
    there = decode(
        encode(Failed(DataError("no column", where="a.csv", why="all rows need it", fix="add it")))
    )
    assert isinstance(there, Failed)
    assert isinstance(there.error, DataError)
    assert not isinstance(there.error, ConfigError)
    assert str(there.error).splitlines() == [
        "no column",
        "  where: a.csv",
        "  why it matters: all rows need it",
        "  what to do: add it",
    ]


@pytest.mark.parametrize(
    "line",
    ["", "hello", "[1, 2]", "3", '{"no": "kind"}', '{"event": "Nonsense"}', '{"event": "Ready", "port": 1}'],
)
def test_what_is_no_event_is_none(line: str) -> None:
    assert decode(line) is None


SENDER = """
import os
from satrap.runtime.events import Notice, Outlet
print("before", flush=True)
outlet = Outlet()
outlet.send(Notice("hello"))
print("for people", flush=True)
os.system("echo by another program")
"""


def test_what_is_printed_goes_to_the_log_once_events_are_sent() -> None:
    done = subprocess.run([sys.executable, "-c", SENDER], capture_output=True, text=True, check=True)
    before, event = done.stdout.splitlines()
    assert before == "before"
    assert json.loads(event) == {"event": "Notice", "text": "hello"}
    assert done.stderr.splitlines() == ["for people", "by another program"]
