"""What files and folders of a checkpoint may be called: a manifest may come from anywhere."""

from __future__ import annotations

import re
from typing import Any

from satrap.errors import CheckpointError

_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")


def is_plain(name: Any) -> bool:
    """Return whether it is a name inside a folder: of letters, digits, ".", "_" and "-", no path."""
    return isinstance(name, str) and _PLAIN.fullmatch(name) is not None


def not_plain(name: Any, where: str) -> CheckpointError:
    """Return the error about a name that is not plain."""
    return CheckpointError(
        f"{str(name)[:200]!r} is no name of a file of a checkpoint",
        where=where,
        why="it could lead to a file outside of it",
        fix="do not use this checkpoint: it was not written by satrap",
    )
