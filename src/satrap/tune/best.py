"""The recipe of the best trial, as a file that keeps the comments of the recipe it came from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from satrap.config import Recipe, load, to_yaml
from satrap.config.edit import edited, written
from satrap.errors import ConfigError
from satrap.launch.folder import write_whole
from satrap.tune.space import Dimension, changes_of, chosen
from satrap.tune.study import Trial
from satrap.words import decimals, metric_name


def write_best(
    file: Path, recipe: Recipe, space: Sequence[Dimension], best: Trial, before: Trial | None, metric: str
) -> None:
    """Write the recipe of a trial; `satrap train` takes it from any folder.

    The comments of the recipe stay, unless it says something in a way that cannot be edited, such as a value
    used in two places by an alias.

    Args:
        file: where.
        recipe: the one that the search began with.
        space: what was varied.
        best: the trial.
        before: the trial of the recipe itself, if it has ended.
        metric: of the validation rows.
    """
    wanted = chosen(recipe, space, best.choice)
    head = "".join(f"# {line}\n" for line in _head(recipe, space, best, before, metric))
    draft = file.with_suffix(".draft")
    try:
        old = Path(recipe.source.file).read_text(encoding="utf-8")
        text = head + edited(old, written(recipe, wanted, changes_of(space, best.choice)))
        write_whole(draft, text)
        if load(draft).resolved() != wanted.resolved():
            raise ConfigError("an alias")
    except (ConfigError, OSError):
        write_whole(draft, head + to_yaml(wanted.resolved()))
    draft.replace(file)


def _head(
    recipe: Recipe, space: Sequence[Dimension], best: Trial, before: Trial | None, metric: str
) -> list[str]:
    def figure(trial: Trial | None) -> str:
        return "-" if trial is None or trial.value is None else decimals(trial.value)

    name = metric_name(metric)
    lines = [f"Written by satrap tune: trial {best.number}, validation {name} {figure(best)}."]
    if not best.recipe:
        lines.append(f"{recipe.source.file} has {figure(before)}. What differs from it:")
    for one in space:
        if best.choice[one.key] != one.own:
            new, old = (one.options[i].text for i in (best.choice[one.key], one.own))
            lines.append(f"  {one.key}: {new}, was {old}")
    return lines
