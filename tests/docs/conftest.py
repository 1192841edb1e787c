"""The folder in which most pages begin."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.page import follow

FIRST = Path(__file__).resolve().parents[2] / "docs" / "tutorials" / "own_data.md"


@pytest.fixture(scope="session")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder in which the first tutorial ends."""
    folder = tmp_path_factory.mktemp("tutorial")
    follow(FIRST, folder)
    return folder
