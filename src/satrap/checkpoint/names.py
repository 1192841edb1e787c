"""Which names a manifest may contain: it may come from anywhere, so no name may lead out of its folder."""

from __future__ import annotations

import re
from typing import Any

from satrap.errors import CheckpointError

_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")


def is_plain(name: Any) -> bool:
    """Return whether a name consists of letters, digits, ".", "_" and "-", and is no path."""
    return isinstance(name, str) and _PLAIN.fullmatch(name) is not None


def not_plain(name: Any, where: str) -> CheckpointError:
    """Return the error about a name that is not plain."""
    return CheckpointError(
        f"{str(name)[:200]!r} is no name of a file of a checkpoint",
        where=where,
        why="it could lead to a file outside the checkpoint",
        fix="do not use this checkpoint: satrap did not write it",
    )
