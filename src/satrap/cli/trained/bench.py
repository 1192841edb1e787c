"""`satrap bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from satrap.cli.options import debug_option, json_option, notice
from satrap.cli.trained.versions import key_option, server_argument


@click.group()
def bench() -> None:
    """Measure a server under load."""


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
    help="Duration of the test.",
)
@click.option("--items", default=100, show_default=True, type=click.IntRange(min=1), help="Rows per request.")
@click.option(
    "--context",
    multiple=True,
    metavar="COL",
    help="Context column: its value in the first row of a request applies to all rows; may be repeated.",
)
@click.option(
    "--run",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Run folder of the served model: compare each response with the offline scores of the step it "
    "reports.",
)
@click.option(
    "--tolerance",
    default=1e-6,
    show_default=True,
    type=click.FloatRange(min=0),
    help="Largest allowed difference of a score, absolute and relative.",
)
@click.option(
    "--connections",
    default=64,
    show_default=True,
    type=click.IntRange(min=1),
    help="Maximum number of connections.",
)
@click.option(
    "--timeout",
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    type=click.FloatRange(min=0, min_open=True),
    help="Time after which a request counts as failed.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of the request times.")
@key_option
@json_option
@debug_option
def serve(as_json: bool, **options: Any) -> int:
    """Send requests to the server at URL at a given rate, and report its latency.

    Requests arrive as a Poisson process, independent of responses, and latency counts from the scheduled
    arrival. Standard output has latency percentiles, in total and by stage, failures by status, and the
    training steps in the responses. The exit code is 1 if a request failed, if the step went back without a
    rollback, or if a score differs from the offline score.
    """
    from satrap.serve.loadtest.run import LoadTest

    report = LoadTest(**options)(notice)
    if as_json:
        import json

        click.echo(json.dumps(report.to_dict()))
    else:
        click.echo("\n".join(report.lines()))
    return int(not report.right)
