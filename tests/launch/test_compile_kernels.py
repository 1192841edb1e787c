"""Kernels that are compiled ahead."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch.runs import make_recipe


@pytest.mark.slow
@pytest.mark.cluster
def test_after_satrap_compile_a_run_compiles_nothing(tmp_path: Path) -> None:
    kept = tmp_path / "kept"

    def satrap(*arguments: object) -> str:
        command = [sys.executable, "-m", "satrap.cli", *map(str, arguments)]
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(kept)}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        return done.stdout

    first = json.loads(satrap("compile", "--json"))
    files = set(kept.rglob("*.nbc"))
    assert first["new"] == first["kept"] == len(files) > 50
    recipe = make_recipe(tmp_path)
    for name, cluster in (("one", "{}"), ("two", "{exchange: servers, shards: 2, workers: 2}")):
        satrap("train", recipe, "--output", tmp_path / name, "--set", f"cluster={cluster}")
        satrap("evaluate", tmp_path / name)
    assert set(kept.rglob("*.nbc")) == files
    said = satrap("compile")
    assert said.startswith("compiled 0 functions for ")
    assert f"; {len(files)} are kept in {kept}/satrap" in said
