"""`satrap bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from satrap.cli.options import debug_option, json_option, notice
from satrap.cli.versions import key_option, server_argument


@click.group()
def bench() -> None:
    """Measure what a server does under load."""


@bench.command()
@server_argument
@click.option(
    "--input", "sources", multiple=True, required=True, metavar="FILE", help="Rows to send; may be repeated."
)
@click.option(
    "--rate",
    required=True,
    metavar="R",
    type=click.FloatRange(min=0, min_open=True),
    help="Requests per second, on average.",
)
@click.option(
    "--seconds",
    default=10.0,
    show_default=True,
    type=click.FloatRange(min=0, min_open=True),
    help="For how long.",
)
@click.option(
    "--items", default=100, show_default=True, type=click.IntRange(min=1), help="Rows of a request."
)
@click.option(
    "--context",
    multiple=True,
    metavar="COL",
    help="Column whose value in the first row of a request counts for all of them; may be repeated.",
)
@click.option(
    "--run",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Run folder of the served model: compare each answer with the offline scores of the step it names.",
)
@click.option(
    "--tolerance",
    default=1e-6,
    show_default=True,
    type=click.FloatRange(min=0),
    help="Largest difference of a score, absolute and relative.",
)
@click.option(
    "--connections", default=64, show_default=True, type=click.IntRange(min=1), help="Most connections."
)
@click.option(
    "--timeout",
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    type=click.FloatRange(min=0, min_open=True),
    help="After which a request has failed.",
)
@click.option("--seed", default=0, show_default=True, help="Of the times when requests are sent.")
@key_option
@json_option
@debug_option
def serve(as_json: bool, **options: Any) -> int:
    """Send requests to the server at URL at a given rate, and say how long the answers took.

    Requests are sent when they are due, whether or not the ones before are answered (Poisson arrivals), and
    an answer's time counts from then. Standard output has percentiles, also by stage, failures by status and
    the steps that answered. The exit code is 1 if a request failed, a step fell that was not rolled back, or
    a score differs from the offline one.
    """
    from satrap.serve.loadtest.run import LoadTest

    report = LoadTest(**options)(notice)
    if as_json:
        import json

        click.echo(json.dumps(report.to_dict()))
    else:
        click.echo("\n".join(report.lines()))
    return int(not report.right)
