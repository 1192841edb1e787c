"""Servers of scores, and shards of served rows, as processes."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.cli.command import SATRAP


@contextmanager
def running(*words: object) -> Iterator[tuple[subprocess.Popen[str], Iterator[str]]]:
    """Give a command of satrap as a process, and the lines that it prints until it ends."""
    process = subprocess.Popen(
        [SATRAP, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )

    def lines() -> Iterator[str]:
        assert process.stdout is not None
        while True:
            line = process.stdout.readline()
            assert line, process.communicate()
            yield line.strip()

    try:
        yield process, lines()
    finally:
        process.kill()
        process.communicate()


@contextmanager
def started(*arguments: object) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """Give a server and the lines that it printed, by their first word."""
    with running("serve", *arguments) as (process, printed):
        lines: dict[str, str] = {}
        while "try it" not in lines:
            line = next(printed)
            name, _, text = line.partition("  ")
            lines[name.strip() if text else "loading"] = text.strip() or line
        yield process, lines
