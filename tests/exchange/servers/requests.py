"""Requests that are right, and what makes them wrong."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from satrap.schema import Schema


def opening(schema: Schema) -> dict[str, Any]:
    """Return what a lone worker asks a loader for: its training data from the start."""
    about = {"part": "train", "schema": schema.to_dict()}
    return about | {"epoch": 0, "position": None, "worker": 0, "workers": 1}


def misplace(data: st.DataObject, values: st.SearchStrategy[Any], content: Any) -> None:
    """Put a value in any place of nested JSON, in place of a whole part as often as inside it."""
    key = data.draw(st.sampled_from(sorted(content) if isinstance(content, dict) else range(len(content))))
    inner = content[key]
    if inner and isinstance(inner, dict | list) and data.draw(st.booleans()):
        misplace(data, values, inner)
    else:
        content[key] = data.draw(values)
