"""Programs that stand in for the roles of a run, and what a launcher hears of them."""

from __future__ import annotations

import time
from collections.abc import Callable

from satrap.launch.launchers.launcher import Launcher
from satrap.runtime.events import Event

SERVER = """
import os, select, signal, sys
from satrap.runtime.events import Notice, Ready, encode
# Written without a buffer: the signal may come while the line below is still being printed.
signal.signal(signal.SIGINT, lambda *_: os.write(1, f"{encode(Notice('saves'))}\\n".encode()))
print("no event")
print(encode(Ready(" ".join(sys.argv[1:]))), flush=True)
while not select.select([0], [], [], 0.1)[0]:  # a signal just before a wait is handled after it
    pass
"""


def hear(launcher: Launcher, until: Callable[[list[tuple[str, Event]]], bool]) -> list[tuple[str, Event]]:
    """Return what roles report until a condition is true."""
    heard: list[tuple[str, Event]] = []
    limit = time.monotonic() + 60
    while not until(heard) and time.monotonic() < limit:
        heard += launcher.events(0.1)
    assert until(heard), heard
    return heard


MEASURED = """
import sys
from satrap.runtime.events import MetricsServed, encode
from satrap.openmetrics import Endpoint
values = {"satrap_shard_rows": 7, "satrap_shard_requests": {"lookup": 3}}
endpoint = Endpoint("127.0.0.1", 0, lambda: values)
print(encode(MetricsServed(endpoint.reached)), flush=True)
sys.stdin.read()
"""
