"""The settings of a warm start."""

from __future__ import annotations

from typing import Any

import pytest

from satrap.errors import ConfigError
from satrap.settings.warm_start import WarmStart


def test_optimizer_state_is_taken_only_if_asked_for() -> None:
    assert WarmStart("runs/x") == WarmStart(url="runs/x", state=False)


def test_other_types_are_refused_by_name() -> None:
    wrong: Any = 1
    with pytest.raises(ConfigError, match="url must be"):
        WarmStart(wrong)
