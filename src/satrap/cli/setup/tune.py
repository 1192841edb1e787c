"""`satrap tune`."""

from __future__ import annotations

import re
import shlex

import click

from satrap.cli.options import debug_option, set_option

TRIALS = 30
"""Number of trials of a search without limits."""

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def _seconds(_: click.Context, __: click.Parameter, value: str | None) -> float | None:
    """Read a time such as `90s`, `30m`, `2h` or `1d`."""
    if value is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", value)
    if match is None or float(match[1]) == 0:
        raise click.BadParameter(f"{value!r} is not a time such as 90s, 30m, 2h or 1d")
    return float(match[1]) * _UNITS[match[2]]


@click.command()
@click.argument("recipe")
@click.option(
    "--trials",
    type=click.IntRange(1),
    metavar="N",
    help=f"End after N trials; default {TRIALS} without --time.",
)
@click.option(
    "--time", "seconds", callback=_seconds, metavar="T", help="End after this time, for example 30m or 2h."
)
@set_option
@click.option("--output", metavar="DIR", help="Folder of the search; default runs/<recipe>-tune.")
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the search.")
@debug_option
def tune(
    recipe: str,
    trials: int | None,
    seconds: float | None,
    overrides: tuple[str, ...],
    output: str | None,
    seed: int,
) -> None:
    """Train variants of RECIPE and write the best one, as measured on its validation rows.

    The first trial is the recipe itself. After Ctrl-C or a kill, repeat the command to resume: both limits
    include the trials of earlier calls. Test rows are not read. Needs Optuna: pip install 'satrap[tune]'
    """
    from satrap.config import load

    loaded = load(recipe, overrides)
    click.echo("loading PyTorch", err=True)
    from satrap.tools.tune import BEST, LiveLine, SearchLimits, result_lines
    from satrap.tools.tune import tune as search

    limits = SearchLimits(trials or (None if seconds else TRIALS), seconds)
    with LiveLine() as line:
        search_result = search(
            loaded,
            output,
            limits=limits,
            seed=seed,
            observers=[line],
            notice=line.say,
        )
    if search_result.best is not None:
        click.echo("")
        for text in result_lines(search_result):
            click.echo(text)
        best = shlex.quote(str(search_result.folder / BEST))
        click.echo(f"best recipe: {best}\nnext: satrap train {best}")
    if search_result.interrupted:
        click.echo("the search was interrupted; repeat the command to resume")
