"""Versions of Python and of the libraries that satrap needs. No library is loaded."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, metadata, requires, version

from satrap.tools.doctor.finding import Finding

SHOWN = ("torch", "numpy", "numba", "pyarrow")


def versions() -> Iterator[Finding]:
    """Yield one finding with the main versions, and one for each missing or unsupported library."""
    yield from unfit(requires("satrap") or (), metadata("satrap")["Requires-Python"] or "")
    named = [f"{name} {present}" for name in ("satrap", *SHOWN) if (present := _installed(name))]
    yield Finding("versions", "ok", ", ".join([f"Python {platform.python_version()}", *named]))


def unfit(required: Sequence[str], python: str) -> Iterator[Finding]:
    """Yield an error for each unmet requirement, such as "torch<2.14,>=2.11"; extras do not count."""
    if not fits(platform.python_version(), python):
        yield Finding("Python", "error", f"Python is {platform.python_version()}", f"use Python {python}")
    for requirement in required:
        if ";" in requirement:  # belongs to an extra
            continue
        match = re.match(r"([\w.-]+)(?:\[.*?\])?\s*(.*)", requirement)
        assert match is not None
        name, allowed = match.groups()
        present = _installed(name)
        if present is None:
            yield Finding(name, "error", "not installed", f"pip install '{requirement}'")
        elif not fits(present, allowed):
            yield Finding(name, "error", f"unsupported version {present}", f"pip install '{requirement}'")


def fits(found: str, allowed: str) -> bool:
    """Return whether a version meets clauses of >=, <= , > and <, such as "<2.14,>=2.11"."""
    have = _numbers(found)
    for clause in filter(None, (part.strip() for part in allowed.split(","))):
        match = re.match(r"(>=|<=|<|>)\s*(.+)", clause)
        if match is None:
            continue
        want = _numbers(match[2])
        size = max(len(have), len(want))
        left, right = (numbers + (0,) * (size - len(numbers)) for numbers in (have, want))
        if not {">=": left >= right, "<=": left <= right, "<": left < right, ">": left > right}[match[1]]:
            return False
    return True


def _numbers(text: str) -> tuple[int, ...]:
    """Return the release of a version: (2, 13, 0) of "2.13.0+cpu"."""
    match = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(number) for number in match[0].split(".")) if match else ()


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
