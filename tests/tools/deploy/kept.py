"""What somebody else's model of our data keeps of it."""

from __future__ import annotations

from typing import Any


def missing(given: Any, kept: Any, path: str = "") -> list[str]:
    """Return what a reader of `given` did not keep."""
    if isinstance(given, dict) and isinstance(kept, dict):
        return [one for key in given for one in missing(given[key], kept.get(key), f"{path}.{key}")]
    if isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        pairs = zip(given, kept, strict=True)
        return [one for n, (a, b) in enumerate(pairs) for one in missing(a, b, f"{path}[{n}]")]
    return [] if given == kept else [path]
