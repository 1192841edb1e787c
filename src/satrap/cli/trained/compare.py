"""`satrap compare`."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import click

from satrap.cli.options import debug_option, json_option, notice
from satrap.runtime.formatting import counted, decimals, metric_name

if TYPE_CHECKING:
    from satrap.tools.compare import RunComparison


@click.command()
@click.argument("folders", metavar="RUN...", nargs=-1, required=True)
@click.option(
    "--seeds",
    type=click.IntRange(1),
    metavar="N",
    help="Compare N seeds of each RUN, from the lowest; default all.",
)
@click.option("--quick", is_flag=True, help="Only read the runs' metrics; do not score rows.")
@json_option
@debug_option
def compare(folders: tuple[str, ...], seeds: int | None, quick: bool, as_json: bool) -> None:
    """Compare runs with the first one: metrics, spread over seeds, and whether a difference may be chance.

    RUN is a run folder, or a folder of satrap train --seeds. Differences have a 95 % interval and a p-value:
    over seeds from a paired t test, over the same test or validation rows from DeLong's test of AUCs and a
    paired t test of losses.
    """
    from satrap.tools.compare import compare as compared

    result = compared(folders, seeds=seeds, score=not quick, notice=notice)
    for text in result.warnings:
        notice(f"warning: {text}")
    for text in result.notes:
        notice(f"note: {text}")
    if as_json:
        click.echo(json.dumps(result.to_dict(), indent=2))
        return
    _show(result)


def _show(result: RunComparison) -> None:
    keys = list(dict.fromkeys(key for metrics in result.metrics.values() for key in metrics))
    head = [result.part, "seeds", *map(metric_name, keys)]
    lines = [
        [path, str(len(result.seeds[path])), *(spread(metrics.get(key)) for key in keys)]
        for path, metrics in result.metrics.items()
    ]
    _table([head, *lines])
    first = next(iter(result.metrics))
    for path, tests in result.tests.items():
        click.echo(f"\n{path} minus {first}")
        rows = [
            [
                test.metric,
                f"{test.difference.mean:+.4f}",
                f"95 % interval {test.difference.low:+.4f} to {test.difference.high:+.4f}",
                f"p {test.difference.p:.2g}",
                test.by,
            ]
            for test in tests
        ]
        _table(rows or [["no test: train both with several seeds (satrap train RECIPE --seeds 5)"]])


def spread(value: tuple[float, float] | None) -> str:
    """Return `0.7361 ± 0.0011`, without the spread of a single run; `-` for None."""
    if value is None:
        return "-"
    mean, deviation = value
    return decimals(mean) if math.isnan(deviation) else f"{decimals(mean)} ± {decimals(deviation)}"


def seeds_line(every: list[dict[str, float]]) -> str:
    """Return a line with the mean and spread of the metrics of runs with several seeds."""
    from satrap.tools.compare import mean_and_spread

    shown = [f"{metric_name(key)} {spread(value)}" for key, value in mean_and_spread(every).items()]
    return f"{counted(len(every), 'seed')}    {', '.join(shown)} (mean ± standard deviation)"


def _table(rows: list[list[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        click.echo("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
