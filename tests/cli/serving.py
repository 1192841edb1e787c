"""A server of scores as a process."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.cli.command import SATRAP


@contextmanager
def started(*arguments: object) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """Give a server and the lines that it printed."""
    process = subprocess.Popen(
        [SATRAP, "serve", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    lines: dict[str, str] = {}
    try:
        while "try it" not in lines:
            line = process.stdout.readline()
            assert line, process.communicate()
            name, _, text = line.strip().partition("  ")
            lines[name.strip() if text else "loading"] = text.strip() or line.strip()
        yield process, lines
    finally:
        process.kill()
        process.communicate()
