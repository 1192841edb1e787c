"""Fixtures of several of the files here."""

from __future__ import annotations

from pathlib import Path

import pytest

from satrap.checkpoint import write_checkpoint
from tests.checkpoint.states import make_checkpoint


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint to be changed; who does brings it back."""
    place = tmp_path_factory.mktemp("valid") / "run"
    write_checkpoint(str(place), make_checkpoint())
    return place
