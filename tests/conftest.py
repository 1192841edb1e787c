"""The Ray cluster that tests share, and what tests need to run."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version

import pytest

from satrap.doctor.versions import fits
from tests.launchers.ray_nodes import Nodes
from tests.support import forked

forked.install()


@pytest.fixture(scope="session")
def nodes() -> Iterator[Nodes]:
    with Nodes([4, 4]) as started:
        yield started


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("pytorch"):
        if not fits(version("torch"), f">={mark.args[0]}"):
            pytest.skip(f"needs PyTorch {mark.args[0]}")
