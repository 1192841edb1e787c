"""What the benchmarks time by name exists."""

from __future__ import annotations

from importlib import import_module

import pytest
from benchmarks.persia import __main__ as worker
from benchmarks.persia import shard


@pytest.mark.parametrize(("place", "name"), [p[1:] for p in (*worker.PLACES, *shard.PLACES)])
def test_a_timed_place_exists(place: str, name: str) -> None:
    module, _, owner = place.partition(":")
    found = import_module(module)
    assert hasattr(getattr(found, owner) if owner else found, name)
