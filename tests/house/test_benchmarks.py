"""Benchmarks are not run here, but what they import, and what they time by name, exists."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
from benchmarks.persia import __main__ as worker
from benchmarks.persia import shard


@pytest.mark.parametrize(("place", "name"), [p[1:] for p in (*worker.PLACES, *shard.PLACES)])
def test_a_timed_place_exists(place: str, name: str) -> None:
    module, _, owner = place.partition(":")
    found = import_module(module)
    assert hasattr(getattr(found, owner) if owner else found, name)


@pytest.mark.filterwarnings("ignore")  # of the rivals
def test_everything_that_is_imported_exists() -> None:
    root = Path(__file__).resolve().parents[2]
    files = sorted((root / "benchmarks").rglob("*.py"))
    names = [".".join(file.relative_to(root).with_suffix("").parts) for file in files]
    assert "benchmarks.placement.__main__" in names
    for name in names:
        try:
            import_module(name)
        except ModuleNotFoundError as error:  # a rival that is not installed
            if str(error.name).partition(".")[0] in ("benchmarks", "satrap", "tests"):
                raise
