"""`satrap train`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from satrap.cli.options import debug_option, output_folder_option, set_option

if TYPE_CHECKING:
    from satrap.config import Recipe
    from satrap.launch import Outcome


@click.command()
@click.argument("recipe", required=False)
@set_option
@output_folder_option
@click.option("--resume", is_flag=True, help="Continue a killed or stopped run from its newest snapshot.")
@click.option(
    "--until-done",
    is_flag=True,
    help="For a process manager that repeats the command until it succeeds: start the run in DIR, or "
    "continue it; exit code 0 only if it is complete.",
)
@debug_option
def train(
    recipe: str | None, overrides: tuple[str, ...], output: str | None, resume: bool, until_done: bool
) -> int:
    """Train the model that RECIPE describes.

    With --resume and --output, RECIPE may be omitted; the run folder holds a copy.
    """
    from satrap.config import load

    if until_done:
        if recipe is None or output is None or resume:
            raise click.UsageError("--until-done goes with a RECIPE and --output DIR, and without --resume")
        from satrap.launch.resume import begun

        found = begun(load(recipe, overrides), output)
        if found is None:
            click.echo(f"the run in {output} is complete")
            return 0
        resume = found
    if recipe is None and not (resume and output):
        raise click.UsageError("name a RECIPE, or a run to continue: --output DIR --resume")
    file = recipe or str(Path(str(output)) / "recipe.yaml")
    loaded = load(file, overrides) if recipe or Path(file).exists() else None
    outcome = run(loaded, output, resume=resume)
    if outcome.result.stopped == "stopped":
        return int(until_done)
    about = outcome.folder.recipe().sections.about
    for model, auc in about.published.items():
        click.echo(f"published  {model}: test AUC {auc:.4f}")
    click.echo(f"run folder: {outcome.folder}\nnext: satrap report {shlex.quote(str(outcome.folder))}")
    return 0


def run(recipe: Recipe | None, output: str | None, *, name: str = "", resume: bool = False) -> Outcome:
    """Train with a progress line; print the metrics of the result, or how to continue a stopped run.

    See `satrap.launch.train` for the arguments.
    """
    click.echo("loading PyTorch", err=True)  # seconds, or more when the disk has not read it yet
    from satrap import launch
    from satrap.report import ProgressLine
    from satrap.words import metrics_line

    with ProgressLine() as line:
        outcome = launch.train(recipe, output, name=name, resume=resume, observers=[line], notice=line.say)
    for part, metrics in (("validation", outcome.result.metrics), ("test", outcome.test)):
        if metrics:
            click.echo(f"{part:<10} {metrics_line(metrics)}")
    if outcome.result.stopped == "stopped":
        folder = shlex.quote(str(outcome.folder))
        click.echo(f"stopped after step {outcome.result.steps:,}; its state is saved\nnext:")
        click.echo(f"  satrap train --output {folder} --resume\n  satrap evaluate {folder}")
    return outcome
