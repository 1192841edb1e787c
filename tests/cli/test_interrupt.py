"""Ctrl-C before a command has begun."""

from __future__ import annotations

import signal
import subprocess
import sys


def test_ctrl_c_during_imports_ends_as_it_does_later() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "satrap.cli", "shard", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        next(line for line in process.stderr if line.endswith(" click.core\n"))
        process.send_signal(signal.SIGINT)
        said = [line for line in process.stderr if not line.startswith("import time:")]
    assert said == ["error: interrupted; nothing was saved\n"]
    assert process.returncode == 1
