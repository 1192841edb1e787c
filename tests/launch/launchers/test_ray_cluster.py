"""What is said of a Ray that cannot be reached, and of its errors."""

from __future__ import annotations

import sys

import pytest

from satrap.errors import ConfigError
from satrap.launch.launchers.ray_cluster import last_line, ray_module


def test_a_missing_ray_is_an_error_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match="Ray is not installed") as caught:
        ray_module()
    assert "pip install 'satrap[ray]'" in caught.value.fix


def test_of_an_error_with_a_traceback_the_last_line_counts() -> None:
    assert last_line(ValueError("Traceback:\n  File x\nValueError: no room\n\n")) == "ValueError: no room"
    assert last_line(ValueError("")) == "ValueError"
    assert last_line(ValueError("x" * 50 + " " + "y" * 200)) == "x" * 50 + " ..."
