from __future__ import annotations

import pytest

from satrap.errors import ConfigError
from satrap.serve.limits import Limits


@pytest.mark.parametrize("name", ["max_items", "max_bytes", "max_queue", "deadline"])
def test_impossible_limits_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"serving.{name} must be > 0"):
        Limits(**{name: 0})
