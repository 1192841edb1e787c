"""`satrap train`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from satrap.cli.options import debug_option, output_folder_option, set_option

if TYPE_CHECKING:
    from satrap.config import Recipe
    from satrap.launch import Outcome


@click.command()
@click.argument("recipe")
@set_option
@output_folder_option
@debug_option
def train(recipe: str, overrides: tuple[str, ...], output: str | None) -> None:
    """Train the model that RECIPE describes."""
    from satrap.config import load

    loaded = load(recipe, overrides)
    outcome = run(loaded, output)
    about = loaded.sections.about
    for model, auc in about.published.items():
        click.echo(f"published  {model}: test AUC {auc:.4f}")
    click.echo(f"run folder: {outcome.folder}")


def run(recipe: Recipe, output: str | None, *, name: str = "") -> Outcome:
    """Train with a progress line and print the metrics of the result.

    Args:
        recipe: what to do.
        output: the run folder, None for the default `runs/<name>-<n>`.
        name: default the recipe's.
    """
    from satrap import launch
    from satrap.report import ProgressLine
    from satrap.report.words import metrics_line

    with ProgressLine() as line:
        outcome = launch.train(recipe, output, name=name, observers=[line], notice=line.say)
    for part, metrics in (("validation", outcome.result.metrics), ("test", outcome.test)):
        if metrics:
            click.echo(f"{part:<10} {metrics_line(metrics)}")
    return outcome
