"""`satrap compile`; what it compiles: `tests/launch/test_compile_kernels.py`."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.cluster
def test_compiling_ahead_without_a_place_to_keep_it_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "satrap.cli", "compile"],
        env={**os.environ, "NUMBA_CACHE_DIR": "/proc/none"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "error: compiled code cannot be cached" in done.stderr
    assert "NUMBA_CACHE_DIR" in done.stderr
