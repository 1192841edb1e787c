"""The recipe file of the best trial, which keeps the comments of the original recipe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from satrap.config import Recipe, load, to_yaml
from satrap.config.edit import edited, written
from satrap.errors import ConfigError
from satrap.launch.folder.run_folder import write_whole
from satrap.runtime.formatting import decimals, metric_name
from satrap.tools.tune.space import Dimension, changes_of, chosen
from satrap.tools.tune.study import Trial


def write_best(
    file: Path, recipe: Recipe, space: Sequence[Dimension], best: Trial, before: Trial | None, metric: str
) -> None:
    """Write the recipe of a trial; `satrap train` accepts the file from any folder.

    Comments are kept, unless the recipe uses YAML that cannot be edited, such as an alias for a value used
    twice.

    Args:
        file: path to write.
        recipe: the original recipe of the search.
        space: the dimensions of the search.
        best: the trial.
        before: the trial of the original recipe, if it has ended.
        metric: the metric of the validation rows.
    """
    best_recipe = chosen(recipe, space, best.choice)
    head = "".join(f"# {line}\n" for line in _head(recipe, space, best, before, metric))
    draft = file.with_suffix(".draft")
    try:
        old = Path(recipe.source.file).read_text(encoding="utf-8")
        text = head + edited(old, written(recipe, best_recipe, changes_of(space, best.choice)))
        write_whole(draft, text)
        if load(draft).resolved() != best_recipe.resolved():
            raise ConfigError("an alias")
    except (ConfigError, OSError):
        write_whole(draft, head + to_yaml(best_recipe.resolved()))
    draft.replace(file)


def _head(
    recipe: Recipe, space: Sequence[Dimension], best: Trial, before: Trial | None, metric: str
) -> list[str]:
    def figure(trial: Trial | None) -> str:
        return "-" if trial is None or trial.value is None else decimals(trial.value)

    name = metric_name(metric)
    lines = [f"Written by satrap tune: trial {best.number}, validation {name} {figure(best)}."]
    if not best.recipe:
        lines.append(f"{recipe.source.file} has {figure(before)}. Changes:")
    for dimension in space:
        if best.choice[dimension.key] != dimension.own:
            new, old = (dimension.options[i].text for i in (best.choice[dimension.key], dimension.own))
            lines.append(f"  {dimension.key}: {new}, was {old}")
    return lines
