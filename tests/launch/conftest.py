"""Runs make networks again and again, each with a collection of garbage."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _garbage_of_runs_only(frozen_imports: None) -> None:
    pass
