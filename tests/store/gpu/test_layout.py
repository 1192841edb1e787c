"""Codes that host, device and the CPU's index share."""

from __future__ import annotations

import pytest

from satrap.store.gpu import layout
from satrap.store.kernels.index import layout as on_cpu

pytestmark = pytest.mark.triton


def test_notes_are_the_cpus() -> None:
    assert (layout.NONE, layout.RECENT, layout.FREQUENT) == (on_cpu.NONE, on_cpu.RECENT, on_cpu.FREQUENT)


def test_codes_differ() -> None:
    assert len({layout.NONE, layout.RECENT, layout.FREQUENT, layout.FIND, layout.ERASE}) == 5
    bits = (layout.SECOND, layout.CREATED, layout.EVICTED, layout.REFUSAL)
    assert sum(bits) == 15
