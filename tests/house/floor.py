"""The oldest versions that `pyproject.toml` allows: `python -m tests.house.floor` prints them for pip."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

EXTRAS = ("tensorboard", "s3", "tune", "plan", "serve", "redis", "kafka")
"""Extras that the quick tests use."""


def oldest(project: Mapping[str, Any]) -> Iterator[str]:
    """Yield `name==version` for each requirement of a `[project]` table and of `EXTRAS`."""
    optional = project["optional-dependencies"]
    for requirement in [*project["dependencies"], *(one for extra in EXTRAS for one in optional[extra])]:
        match = re.match(r"([\w.-]+)(?:\[\w+\])?>=([\d.]+)", requirement)
        assert match is not None, f"{requirement} has no lower bound"
        yield f"{match[1]}=={match[2]}"


if __name__ == "__main__":
    root = Path(__file__).parents[2]
    print(*oldest(tomllib.loads((root / "pyproject.toml").read_text())["project"]))
