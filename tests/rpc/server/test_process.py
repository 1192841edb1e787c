"""The process of a server: one line when it is ready, and an end when it is asked for."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest


@pytest.mark.parametrize("asked", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_listens_and_ends_when_it_is_asked_to(asked: signal.Signals) -> None:
    command = [sys.executable, "-m", "tests.rpc.server.adder", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.send_signal(asked)
        assert process.wait(20) == 0
    assert line.startswith("satrap adder ready on 127.0.0.1:")
    assert line.endswith(" (open to this machine only)\n")
