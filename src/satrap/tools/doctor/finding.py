"""The result of a check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Args:
        check: its name, one or two words.
        level: "ok"; "warning": works, but slowly or with a risk; "error": will not work.
        found: the observation, one sentence.
        fix: recommended change; may be empty.
    """

    check: str
    level: Level
    found: str
    fix: str = ""
