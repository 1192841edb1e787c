"""Loaded by every Python process of a survey: notes which test was the first to call each function."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

FOLDER = os.environ.get("SATRAP_SURVEY")
"""Where each process writes a file of lines `call TAB test TAB path TAB function`."""
SOURCE = f"src{os.sep}satrap{os.sep}"

_seen: set[int] = set()
_test = os.environ.get("PYTEST_CURRENT_TEST", "").rsplit(" ", 1)[0]


def begin(test: str) -> None:
    """Count the calls from now on as those of this test."""
    global _test
    _test = test
    _seen.clear()
    _follow()  # again: a test may have ended it


def write(*fields: object) -> None:
    """Append a line to this process's file."""
    with Path(str(FOLDER), str(os.getpid())).open("a", encoding="utf-8") as file:
        file.write("\t".join(map(str, fields)) + "\n")


def _called(frame: FrameType, event: str, argument: Any) -> None:
    code: CodeType = frame.f_code
    if id(code) not in _seen:
        _seen.add(id(code))
        if SOURCE in code.co_filename and _test:
            with suppress(OSError):  # a test may have taken all descriptors; an error would end the tracing
                write("call", _test, SOURCE + code.co_filename.split(SOURCE)[1], code.co_qualname)


def _follow() -> None:
    threading.settrace(_called)
    sys.settrace(_called)


if FOLDER:
    _follow()
