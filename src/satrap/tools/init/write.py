"""Formatting of a recipe with a comment next to each choice."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

_PLAIN = re.compile(r"[A-Za-z_][\w.-]*")
_WORDS = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}


def scalar(value: Any) -> str:
    """Return a value as YAML on one line."""
    if value is None or isinstance(value, bool | int):
        return json.dumps(value)
    if isinstance(value, float):
        text = repr(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
        return text if "e" not in text or "." in text else text.replace("e", ".0e")
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{scalar(k)}: {scalar(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(scalar, value)) + "]"
    plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS
    return str(value) if plain else '"' + "".join(map(_escaped, value)) + '"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    if character == "\t":
        return "\\t"
    return character if character.isprintable() else f"\\U{ord(character):08x}"


def comment(text: str) -> str:
    """Return text as one comment."""
    return "# " + " ".join("".join(c if c.isprintable() else " " for c in text).split())


def section(name: str, lines: Mapping[str, tuple[Any, str]]) -> Iterator[str]:
    """Yield the lines of a section: keys, values and optional comments."""
    yield f"{name}:"
    written = {key: f"  {scalar(key)}: {scalar(value)}" for key, (value, _) in lines.items()}
    width = min(44, max(map(len, written.values()), default=0))
    for key, (_, why) in lines.items():
        yield f"{written[key]:<{width}}  {comment(why)}".rstrip() if why else written[key]
