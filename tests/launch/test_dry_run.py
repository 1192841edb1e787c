"""What is tried before processes are started is what one of the shards will have."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from satrap.config import load
from satrap.errors import SatrapError
from satrap.launch import dry_run as dry_run_module
from satrap.launch.datasets import measured
from satrap.launch.dry_run import dry_run
from satrap.models import DNN
from tests.launch.runs import RECIPE, UNBOUNDED, make_recipe

SHARDS = 8


@pytest.mark.parametrize(("memory", "enough"), [(240_000, True), (80_000, False)])
def test_a_shard_has_its_share_of_the_memory_and_of_the_tier(
    memory: int, enough: bool, tmp_path: Path
) -> None:
    bounds = f"""\
embedding:
  optimizer: {{name: adagrad, lr: 0.1}}
  memory: {SHARDS * memory}
  eviction: {{policy: lru}}
  tier: {{path: {tmp_path}, size: {SHARDS * 32_000}}}
cluster: {{exchange: servers, shards: {SHARDS}}}
"""
    recipe = load(make_recipe(tmp_path, RECIPE.replace(UNBOUNDED, bounds)))
    with nullcontext() if enough else pytest.raises(SatrapError, match="memory"):
        dry_run(recipe, measured(recipe, recipe.schema()))


@pytest.mark.parametrize("smallest", [1, 1 << 26])
def test_a_large_network_that_workers_divide_is_left_out(
    smallest: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own errors come from the workers then, and those of the rows from here."""
    monkeypatch.setattr(dry_run_module, "LARGE_NETWORK", smallest)
    monkeypatch.setattr(DNN, "forward", lambda *_: 1 / 0)
    recipe = load(make_recipe(tmp_path), ["cluster.exchange=servers", "dense.mesh.tensor=2"])
    with nullcontext() if smallest == 1 else pytest.raises(ZeroDivisionError):
        dry_run(recipe, measured(recipe, recipe.schema()))
