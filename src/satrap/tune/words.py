"""A search as lines of at most 80 characters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from satrap.tune.space import Dimension
from satrap.tune.study import Found, Trial
from satrap.words import decimals, duration, metric_name

WIDTH = 80
MOST = 40
"""Width of a table's first column, at most."""


def space_lines(space: Sequence[Dimension]) -> Iterator[str]:
    """Yield what is varied, with the recipe's own values in brackets."""
    yield "varied, with the recipe's own values in ():"
    for one in space:
        values = [f"({o.text})" if i == one.own else o.text for i, o in enumerate(one.options)]
        yield cut(f"  {one.key:<{_widest(space)}}  {' '.join(values)}")


def heading(metric: str) -> str:
    """Return the heading of the trials' lines."""
    return f"trial {metric_name(metric)[:9]:>9} passes    time  changed (* best so far)"


def trial_line(trial: Trial, space: Sequence[Dimension], *, improved: bool) -> str:
    """Return the line of a trial; `improved`: it is better than all before."""
    value = "-" if trial.value is None else decimals(trial.value)
    ended = {"complete": "", "pruned": f"{trial.why}: ", "failed": f"failed, {trial.why}: "}[trial.state]
    changed = ", ".join(f"{name} {text}" for name, text in changes(space, trial.choice).items())
    what = "the recipe" if trial.recipe else changed
    star = "*" if improved else " "
    return cut(
        f"{trial.number:>5} {value:>9}{star}{trial.passes:>5} {duration(trial.seconds):>8}  {ended}{what}"
    )


def changes(space: Sequence[Dimension], choice: Mapping[str, int]) -> dict[str, str]:
    """Return short name of a key -> text of its option, for keys that a choice changes."""
    lasts = [one.key.rpartition(".")[2] for one in space]
    found = {}
    for one, last in zip(space, lasts, strict=True):
        if choice[one.key] != one.own:
            name = last if lasts.count(last) == 1 else f"{one.key.partition('.')[0]}.{last}"
            found[name] = one.options[choice[one.key]].text
    return found


def result_lines(found: Found) -> Iterator[str]:
    """Yield the table of what mattered and of what was reached; there is a best trial."""
    best, space, name = found.best, found.space, f"validation {metric_name(found.metric)}"
    assert best is not None
    width = min(MOST, max(_widest(space), len(name)))
    yield f"{'of ' + str(found.counted) + ' trials':<{width}}  mattered  {'recipe':>12}  {'best':>12}"
    for one in sorted(space, key=lambda one: -found.importance.get(one.key, 0.0)):
        share = f"{found.importance[one.key]:.0%}" if found.importance else "-"
        own, chosen = (one.options[i].text for i in (one.own, best.choice[one.key]))
        yield cut(f"{one.key:<{width}}  {share:>8}  {own:>12}  {'=' if own == chosen else chosen:>12}")
    reached = [
        "-" if one is None or one.value is None else decimals(one.value) for one in (found.recipe, best)
    ]
    yield f"{name[:width]:<{width}}  {'':>8}  {reached[0]:>12}  {reached[1]:>12}"


def cut(line: str) -> str:
    """Return a line that fits."""
    line = " ".join(line.splitlines()).rstrip()
    return line if len(line) <= WIDTH else line[: WIDTH - 3] + "..."


def _widest(space: Sequence[Dimension]) -> int:
    return min(MOST, max(len(one.key) for one in space))
