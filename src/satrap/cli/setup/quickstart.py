"""`satrap quickstart`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import as_file, files
from typing import TYPE_CHECKING, Any

import click

from satrap.cli.options import debug_option, output_folder_option

if TYPE_CHECKING:
    from satrap.config.keys.sections import AboutKeys

RECIPE = "goodbooks.yaml"


@click.command()
@output_folder_option
@debug_option
def quickstart(output: str | None) -> None:
    """Train on bundled real data, and compare the AUC with a logistic regression."""
    from satrap.cli.runs.train import run
    from satrap.config import load

    with as_file(files("satrap") / "quickstart") as bundled:
        recipe = load(bundled / RECIPE)
        about = recipe.sections.about
        click.echo(credit(about))
        outcome = run(recipe, output, name="quickstart")
    if outcome.result.stopped == "stopped":
        return
    click.echo("\n" + comparison(about.floor, str(recipe.sections.model.name), outcome.metrics))
    click.echo(f"\nrun folder: {outcome.folder}\nnext:")
    click.echo(f"  satrap report {outcome.folder}\n  satrap evaluate {outcome.folder}")
    click.echo(f"  satrap train {outcome.folder.recipe_file} --set training.mode=sync")
    if outcome.folder.curves.exists():
        click.echo(f"  tensorboard --logdir {outcome.folder.curves}")


def credit(about: AboutKeys) -> str:
    """Return title, licence, attribution and source of the data as lines."""
    licence = ", ".join(part for part in (about.licence, about.attribution) if part)
    lines = (about.title, f"data: {licence}" if licence else None, about.source)
    return "\n".join(line for line in lines if line)


def comparison(floor: Mapping[str, float], model: str, metrics: Mapping[str, Any]) -> str:
    """Return a table of the metrics of a logistic regression and of the model."""
    from satrap.runtime.formatting import metric_name

    rows = [("on the test rows", *(metric_name(key) for key in floor))]
    rows.append(("logistic regression", *(f"{value:.4f}" for value in floor.values())))
    rows.append((model, *(f"{metrics[key]:.4f}" for key in floor)))
    return "\n".join("".join(f"{cell:<22}" for cell in row).rstrip() for row in rows)
