"""What is tried before processes are started is what one of the shards will have."""

from __future__ import annotations

from pathlib import Path

from satrap.config import load
from satrap.launch.inputs import measured
from satrap.launch.trial import try_out
from tests.launch.runs import RECIPE, UNBOUNDED, make_recipe


def test_a_shard_has_its_share_of_the_memory_and_of_the_tier(tmp_path: Path) -> None:
    shards = 8
    bounds = f"""\
embedding:
  optimizer: {{name: adagrad, lr: 0.1}}
  memory: {shards * 240_000}
  eviction: {{policy: lru}}
  tier: {{path: {tmp_path}, size: {shards * 32_000}}}
cluster: {{exchange: servers, shards: {shards}}}
"""
    recipe = load(make_recipe(tmp_path, RECIPE.replace(UNBOUNDED, bounds)))
    try_out(recipe, measured(recipe, recipe.schema()))
