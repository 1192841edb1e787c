from pathlib import Path

import pytest

from satrap.tune.space import Dimension, Option
from satrap.tune.study import Found, Trial
from satrap.tune.words import WIDTH, changes, heading, result_lines, space_lines, trial_line


def space() -> list[Dimension]:
    keys = ["embedding.optimizer.lr", "dense.optimizer.lr", "model.hidden", "embedding.optimizer." + 40 * "x"]
    options = (Option("[128, 64, 32, 16]"), Option("0.00061"))
    return [Dimension(key, options, own=0) for key in keys]


def trial(state: str = "complete", why: str = "", recipe: bool = False, **choice: int) -> Trial:
    chosen = {one.key: choice.get(one.key.partition(".")[0], 0) for one in space()}
    value = None if state == "failed" else 0.123456
    return Trial(3, chosen, state, value, 12, 83.4, why, recipe)  # type: ignore[arg-type]


def test_every_line_fits_a_terminal_of_80_columns() -> None:
    lines = [*space_lines(space()), heading("logloss"), heading("average_precision")]
    for one in (trial(dense=1, model=1, embedding=1), trial("failed", "x" * 300), trial("pruned", "y\nz")):
        lines.append(trial_line(one, space(), improved=True))
    assert max(map(len, lines)) <= WIDTH == 80
    assert not [line for line in lines if "\n" in line]


def test_a_line_says_what_the_trial_has_changed_and_reached() -> None:
    line = trial_line(trial(dense=1, model=1), space(), improved=True)
    assert line == "    3    0.1235*   12     1:23  dense.lr 0.00061, hidden 0.00061"
    assert trial_line(trial(recipe=True), space(), improved=False).endswith("1:23  the recipe")
    assert " - " in trial_line(trial("failed", "no memory"), space(), improved=False)
    assert "failed, no memory: hidden" in trial_line(
        trial("failed", "no memory", model=1), space(), improved=False
    )


@pytest.mark.parametrize("metric", ["auc", "average_precision", 80 * "x"])
def test_the_table_of_what_was_reached_is_aligned(metric: str) -> None:
    best, own = trial(dense=1), trial(recipe=True)
    for part in (space()[:1], space()):
        found = Found(Path("out"), metric, tuple(part), 9, best, own, {}, 9, False)
        lines = list(result_lines(found))
        assert len(lines[0]) == len(lines[-1]) <= WIDTH
        assert lines[-1].split()[0] == "validation"
        assert lines[-1].split()[-2:] == ["0.1235", "0.1235"]


def test_short_names_tell_keys_apart() -> None:
    assert list(changes(space(), dict.fromkeys((one.key for one in space()), 1)))[:3] == [
        "embedding.lr",
        "dense.lr",
        "hidden",
    ]


def test_the_recipes_own_values_are_marked() -> None:
    assert list(space_lines(space()))[3].split() == [
        "model.hidden",
        "([128,",
        "64,",
        "32,",
        "16])",
        "0.00061",
    ]
