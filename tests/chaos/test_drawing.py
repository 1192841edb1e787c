"""The configurations that the kill loop walks through are all pairs that a recipe may have."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from satrap.config import load
from satrap.errors import ConfigError
from tools_dev.chaos.changes import Changes
from tools_dev.chaos.drawing import (
    DIMENSIONS,
    REFUSED,
    Configuration,
    Pair,
    draw,
    is_exact,
    legal_pairs,
    pairs,
    write_recipe,
)

PLAIN: Configuration = {name: values[0] for name, values in DIMENSIONS.items()} | {"shards": 1}


@pytest.mark.parametrize("seed", range(3))
def test_every_legal_pair_occurs_and_each_configuration_is_a_recipe(seed: int, tmp_path: Path) -> None:
    drawn = draw(seed)
    assert {pair for configuration in drawn for pair in pairs(configuration)} == legal_pairs()
    assert len(drawn) < 40  # of 155,520
    assert any(map(is_exact, drawn))
    for number, configuration in enumerate(drawn):
        load(write_recipe(tmp_path / str(number), configuration))


def test_the_same_seed_draws_the_same() -> None:
    assert draw(1) == draw(1) != draw(2)


@pytest.mark.parametrize("pair", REFUSED, ids=str)
def test_pairs_that_are_left_out_are_refused_by_the_recipe(pair: Pair, tmp_path: Path) -> None:
    path = write_recipe(tmp_path, {**PLAIN, **dict(pair)})
    with pytest.raises(ConfigError, match=REFUSED[pair]):
        load(path)


def test_a_run_is_gone_on_with_by_unlike_processes_and_each_recipe_is_one(tmp_path: Path) -> None:
    layouts = []
    for number, configuration in enumerate(draw(1)[:8]):
        changes = Changes(configuration, random.Random(number))
        path = changes.write(tmp_path / str(number))
        for _ in range(4):
            changes.again(path)
        layouts += changes.layouts
    assert {layout.shards for layout in layouts} == {0, 1, 2, 3, "none"}
    assert {layout.workers for layout in layouts} == {1, 2}
    assert {layout.replicated for layout in layouts} == {(), ("item",), ("kind",), ("item", "kind")}
