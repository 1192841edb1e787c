"""The Ray cluster that tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.launchers.ray_nodes import Nodes


@pytest.fixture(scope="session")
def nodes() -> Iterator[Nodes]:
    with Nodes([4, 4]) as started:
        yield started
