"""The configurations that the kill loop walks through are all pairs that a recipe may have."""

from __future__ import annotations

from pathlib import Path

import pytest

from satrap.config import load
from satrap.errors import ConfigError
from tests.chaos.drawing import (
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
