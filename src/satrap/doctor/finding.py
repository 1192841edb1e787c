"""What a check found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Args:
        check: a word or two that name it.
        level: "ok"; "warning": works, but slowly or at a risk; "error": will not work.
        found: what there is, one sentence.
        fix: what to change; empty if nothing.
    """

    check: str
    level: Level
    found: str
    fix: str = ""
