"""What several modules of this folder use."""

from __future__ import annotations

import subprocess

import pytest

from tests.cluster.machines import Machines


@pytest.fixture
def machines() -> Machines:
    """Two machines, if this system lets us make them."""
    try:
        with Machines(1, "1gbit"):
            return Machines(2, "1gbit")
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
        pytest.skip(f"no network namespaces: {error}")
