"""`satrap train`."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from satrap.cli.options import (
    SAVE_SECONDS,
    debug_option,
    output_folder_option,
    set_option,
    stop_at_eof_option,
)

if TYPE_CHECKING:
    from satrap.config import Recipe
    from satrap.launch import RunOutcome


@click.command()
@click.argument("recipe", required=False)
@set_option
@output_folder_option
@click.option("--resume", is_flag=True, help="Continue a killed or stopped run from its newest snapshot.")
@click.option(
    "--from",
    "start",
    metavar="RUN",
    help="Start a new run with the weights and rows of another run, as far as they match.",
)
@click.option(
    "--from-state", is_flag=True, help="With --from: also take the optimizer state, where optimizers match."
)
@click.option(
    "--seeds",
    type=click.IntRange(2),
    metavar="N",
    help="Train N runs that differ in training.seed, in DIR/seed-1 and so on; print mean and spread.",
)
@click.option(
    "--follow",
    is_flag=True,
    help="With data.stream: at the end of the log, wait for more events until Ctrl-C or SIGTERM.",
)
@click.option(
    "--until-done",
    is_flag=True,
    help="For process managers that repeat a command until it succeeds: start or continue the run in DIR; "
    "the exit code is 0 only if the run is complete.",
)
@click.option(
    "--detach",
    is_flag=True,
    help="Start or continue the run in DIR on the recipe's Ray cluster, and return. The run survives the "
    "loss of this machine and of its controller's machine.",
)
@click.option("--attach", is_flag=True, help="Show a detached run's output from its beginning until it ends.")
@click.option("--stop", is_flag=True, help="Make a detached run save and end, and show its output.")
@stop_at_eof_option(SAVE_SECONDS, hidden=True)
@debug_option
def train(
    recipe: str | None,
    overrides: tuple[str, ...],
    output: str | None,
    resume: bool,
    start: str | None,
    follow: bool,
    until_done: bool,
    **flags: Any,
) -> int:
    """Train the model that RECIPE describes.

    With --output and --resume, --attach or --stop, RECIPE may be omitted; the run folder holds a copy.
    """
    from satrap.config import load

    overrides += _warm_start(start, flags.pop("from_state"), resume) + ("training.follow=true",) * follow
    seeds = flags.pop("seeds")
    if sum([resume, until_done, seeds is not None, *flags.values()]) > 1:
        ways = "--resume, --until-done, --seeds, --detach, --attach and --stop"
        raise click.UsageError(f"give only one of {ways}")
    if seeds is not None:
        return _seeds(recipe, overrides, output, seeds)
    if any(flags.values()):
        return _detached(recipe, overrides, output, begin=flags["detach"], stop=flags["stop"])
    if until_done:
        begun = _begun(recipe, overrides, output)
        if begun is None:
            return 0
        resume = begun
    if recipe is None and not (resume and output):
        raise click.UsageError("give a RECIPE, or a run to continue: --output DIR --resume")
    file = recipe or str(Path(str(output)) / "recipe.yaml")
    loaded = load(file, overrides) if recipe or Path(file).exists() else None
    from satrap.launch.cluster.torchrun_worker import speaks
    from satrap.runtime.formatting import metric_name

    outcome = run(loaded, output, resume=resume)
    if outcome.result.stopped == "stopped":
        return int(until_done)
    if speaks(loaded):
        about = outcome.folder.recipe().sections.about
        for key, value in about.published.items():
            model, _, metric = key.partition("/")
            click.echo(f"published  {model}: test {metric_name(metric or 'auc')} {value:.4f}")
        click.echo(f"run folder: {outcome.folder}\nnext: satrap report {shlex.quote(str(outcome.folder))}")
    return 0


def _seeds(recipe: str | None, overrides: tuple[str, ...], output: str | None, count: int) -> int:
    """Train a recipe with several seeds; print the metrics of each run, their mean and their spread."""
    if recipe is None:
        raise click.UsageError("--seeds needs a RECIPE")
    from satrap.cli.trained.compare import seeds_line
    from satrap.config import load
    from satrap.runtime.formatting import quality
    from satrap.tools.compare import seed_folders

    every, folders = [], seed_folders(load(recipe, overrides), output, count)
    for folder, of_seed in folders.items():
        click.echo(folder)
        outcome = run(of_seed, folder)
        if outcome.result.stopped == "stopped":
            return 1
        every.append(quality(outcome.test or outcome.result.metrics))
    above = shlex.quote(str(Path(next(iter(folders))).parent))
    click.echo(f"{seeds_line(every)}\nrun folders: {above}\nnext: satrap compare {above} OTHER")
    return 0


def _warm_start(start: str | None, state: bool, resume: bool) -> tuple[str, ...]:
    """Return the overrides of `--from`; the run's path is relative to the current folder."""
    if start is None and not state:
        return ()
    if start is None or resume:
        raise click.UsageError("--from begins a new run, so it excludes --resume; --from-state needs --from")
    url = start if "://" in start else str(Path(start).absolute())
    return (f"training.warm_start={json.dumps({'url': url, 'state': state})}",)


def _begun(recipe: str | None, overrides: tuple[str, ...], output: str | None) -> bool | None:
    """Return whether a run left a snapshot; None if it is complete, which is printed."""
    if recipe is None or output is None:
        raise click.UsageError("--until-done needs a RECIPE and --output DIR")
    from satrap.config import load
    from satrap.launch.cluster.torchrun_worker import has_begun, speaks

    loaded = load(recipe, overrides)
    begun = has_begun(loaded, output)
    if begun is None and speaks(loaded):
        click.echo(f"the run in {output} is complete")
    return begun


def _detached(
    recipe: str | None, overrides: tuple[str, ...], output: str | None, *, begin: bool, stop: bool
) -> int:
    """Start a detached run, or follow one."""
    from satrap.config import load

    if output is None or (begin and recipe is None):
        raise click.UsageError(
            "--detach needs a RECIPE and --output DIR; --attach and --stop need --output DIR"
        )
    loaded = load(recipe or str(Path(output) / "recipe.yaml"), overrides)
    from satrap.launch.cluster import detached

    where = shlex.quote(output)
    if begin:
        detached.detach(loaded, output, overrides)
        click.echo(f"the run continues without this command\nnext:\n  satrap train --output {where} --attach")
        click.echo(f"  satrap train --output {where} --stop")
        return 0
    try:
        return detached.attach(loaded, output, click.echo, stop=stop)
    except KeyboardInterrupt:
        click.echo(f"the run continues\nnext: satrap train --output {where} --attach, or --stop", err=True)
        return 0


def run(recipe: Recipe | None, output: str | None, *, name: str = "", resume: bool = False) -> RunOutcome:
    """Train with a progress line; print the metrics of the result, or how to continue a stopped run.

    See `satrap.launch.train` for the arguments.
    """
    click.echo("loading PyTorch", err=True)  # takes seconds, or longer if it is not in the disk cache
    from satrap import launch
    from satrap.launch.cluster.torchrun_worker import speaks
    from satrap.report import ProgressLine
    from satrap.runtime.formatting import baseline_line, metrics_line

    with ProgressLine() as line:
        outcome = launch.train(recipe, output, name=name, resume=resume, observers=[line], notice=line.say)
    if not speaks(recipe):
        return outcome
    for part, metrics in (("validation", outcome.result.metrics), ("test", outcome.test)):
        if metrics:
            click.echo(f"{part:<10} {metrics_line(metrics)}")
    if baseline := baseline_line(outcome.test or outcome.result.metrics):
        click.echo(f"baseline   {baseline} (the same prediction for every row)")
    if outcome.result.stopped == "stopped":
        folder = shlex.quote(str(outcome.folder))
        click.echo(f"stopped after step {outcome.result.steps:,}; its state is saved\nnext:")
        click.echo(f"  satrap train --output {folder} --resume\n  satrap evaluate {folder}")
    return outcome
