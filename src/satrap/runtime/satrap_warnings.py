"""Shows satrap's own warnings to users as plain lines, without Python's file and line."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_SOURCES = str(Path(__file__).parents[1])


@contextmanager
def told(say: Callable[[str], object]) -> Iterator[None]:
    """Call `say` with satrap's own warnings, from all threads; other warnings are shown as before."""
    before = warnings.showwarning

    def show(message: Any, category: Any, filename: str, *rest: Any) -> None:
        if filename.startswith(_SOURCES):
            say(f"warning: {message}")
        else:
            before(message, category, filename, *rest)

    warnings.showwarning = show  # type: ignore[assignment]
    try:
        yield
    finally:
        warnings.showwarning = before
