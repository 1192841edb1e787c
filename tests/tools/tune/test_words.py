from pathlib import Path

import pytest

from satrap.tools.tune.space import Dimension, Option
from satrap.tools.tune.study import StudyResult, Trial
from satrap.tools.tune.words import WIDTH, changes, cut, heading, result_lines, space_lines, trial_line


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
        found = StudyResult(Path("out"), metric, tuple(part), 9, best, own, {}, 9, False)
        lines = list(result_lines(found))
        assert len(lines[0]) == len(lines[-1]) <= WIDTH
        assert lines[-1].split()[0] == "validation"
        assert lines[-1].split()[-2:] == ["0.1235", "0.1235"]


def test_the_table_of_what_mattered() -> None:
    """The key that mattered most comes first; `=`: the recipe's own value was the best."""
    rates, drops = (Option("0.001"), Option("0.01")), (Option("0"), Option("0.1"))
    part = (Dimension("dense.optimizer.lr", rates, 0), Dimension("model.dropout", drops, 1))
    best = Trial(3, {"dense.optimizer.lr": 1, "model.dropout": 1}, "complete", 0.123456, 1, 1.0, "", False)
    shares = {"dense.optimizer.lr": 0.25, "model.dropout": 0.75}
    assert list(result_lines(StudyResult(Path("out"), "auc", part, 12, best, None, shares, 9, False))) == [
        "of 9 trials         mattered        recipe          best",
        "model.dropout            75%           0.1             =",
        "dense.optimizer.lr       25%         0.001          0.01",
        "validation AUC                           -        0.1235",
    ]
    untold = list(result_lines(StudyResult(Path("out"), "auc", part, 12, best, best, {}, 3, False)))
    assert [line.split()[1] for line in untold[1:3]] == ["-", "-"]
    assert list(space_lines(part))[1:] == [
        "  dense.optimizer.lr  (0.001) 0.01",
        "  model.dropout       0 (0.1)",
    ]


def test_lines_are_cut_at_80_characters() -> None:
    assert [cut("x" * length) for length in (80, 81)] == ["x" * 80, "x" * 77 + "..."]
    assert cut("a\nb ") == "a b"
    pruned = trial_line(trial("pruned", "below the median"), space(), improved=False)
    assert pruned == "    3    0.1235    12     1:23  below the median:"


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
