"""Run the command line, in this process (fast) or as a user does."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from satrap.cli.commands import main

SATRAP = Path(sys.executable).with_name("satrap")


@dataclass
class Answer:
    code: int
    out: str
    err: str

    def assert_refused(self, *parts: str, code: int = 2) -> None:
        """One clear error: exit code, at most four lines, no traceback, and the parts."""
        assert self.code == code, (self.out, self.err)
        error = self.err[self.err.index("error: ") :]
        assert len(error.strip().splitlines()) <= 4, error
        assert "Traceback" not in self.err
        for part in parts:
            assert part in error, self.err


def satrap(*arguments: object) -> Answer:
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "excepthook"),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as exit_:
            return Answer(int(exit_.code or 0), out.getvalue(), err.getvalue())
    raise AssertionError("main returns only by SystemExit")


def process(*arguments: object, folder: Path | None = None, seconds: float = 280) -> Answer:
    done = subprocess.run(
        [SATRAP, *map(str, arguments)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=seconds,
        env={**os.environ, "COLUMNS": "100"},
        check=False,
    )
    return Answer(done.returncode, done.stdout, done.stderr)
