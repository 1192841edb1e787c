"""Formatting of a search as lines of at most 80 characters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from satrap.runtime.formatting import decimals, duration, metric_name
from satrap.tools.tune.space import Dimension
from satrap.tools.tune.study import StudyResult, Trial

WIDTH = 80
MOST = 40
"""Largest width of a table's first column."""


def space_lines(space: Sequence[Dimension]) -> Iterator[str]:
    """Yield the search space, with the recipe's values in parentheses."""
    yield "search space, with the recipe's values in ():"
    for dimension in space:
        values = [f"({o.text})" if i == dimension.own else o.text for i, o in enumerate(dimension.options)]
        yield cut(f"  {dimension.key:<{_widest(space)}}  {' '.join(values)}")


def heading(metric: str) -> str:
    """Return the heading of the trials' lines."""
    return f"trial {metric_name(metric)[:9]:>9} epochs    time  changed (* best so far)"


def trial_line(trial: Trial, space: Sequence[Dimension], *, improved: bool) -> str:
    """Return the line of a trial; `improved`: it is better than all earlier trials."""
    value = "-" if trial.value is None else decimals(trial.value)
    ended = {"complete": "", "pruned": f"{trial.why}: ", "failed": f"failed, {trial.why}: "}[trial.state]
    changed = ", ".join(f"{name} {text}" for name, text in changes(space, trial.choice).items())
    what = "the recipe" if trial.recipe else changed
    star = "*" if improved else " "
    return cut(
        f"{trial.number:>5} {value:>9}{star}{trial.passes:>5} {duration(trial.seconds):>8}  {ended}{what}"
    )


def changes(space: Sequence[Dimension], choice: Mapping[str, int]) -> dict[str, str]:
    """Return short name -> option text, for the keys that a choice changes."""
    lasts = [dimension.key.rpartition(".")[2] for dimension in space]
    texts = {}
    for dimension, last in zip(space, lasts, strict=True):
        if choice[dimension.key] != dimension.own:
            name = last if lasts.count(last) == 1 else f"{dimension.key.partition('.')[0]}.{last}"
            texts[name] = dimension.options[choice[dimension.key]].text
    return texts


def result_lines(found: StudyResult) -> Iterator[str]:
    """Yield the table of key importance and of the values reached; there must be a best trial."""
    best, space, name = found.best, found.space, f"validation {metric_name(found.metric)}"
    assert best is not None
    width = min(MOST, max(_widest(space), len(name)))
    yield f"{'of ' + str(found.counted) + ' trials':<{width}}  mattered  {'recipe':>12}  {'best':>12}"
    for dimension in sorted(space, key=lambda d: -found.importance.get(d.key, 0.0)):
        key = dimension.key
        share = f"{found.importance[key]:.0%}" if found.importance else "-"
        old, chosen = (dimension.options[i].text for i in (dimension.own, best.choice[key]))
        yield cut(f"{key:<{width}}  {share:>8}  {old:>12}  {'=' if old == chosen else chosen:>12}")
    reached = [
        "-" if trial is None or trial.value is None else decimals(trial.value)
        for trial in (found.recipe, best)
    ]
    yield f"{name[:width]:<{width}}  {'':>8}  {reached[0]:>12}  {reached[1]:>12}"


def cut(line: str) -> str:
    """Return a line cut to the width."""
    line = " ".join(line.splitlines()).rstrip()
    return line if len(line) <= WIDTH else line[: WIDTH - 3] + "..."


def _widest(space: Sequence[Dimension]) -> int:
    return min(MOST, max(len(dimension.key) for dimension in space))
