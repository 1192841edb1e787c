"""`satrap plan`."""

import json
from typing import Any

import click

from satrap.cli.options import debug_option, json_option, set_option


def _bytes(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    from satrap.config.keys import as_bytes

    try:
        return None if value is None else int(str(as_bytes(int(value) if value.isdigit() else value)))
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def _rows(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, int]:
    found = {}
    for value in values:
        table, _equals, count = value.rpartition("=")
        if not table or not count.isdigit():
            raise click.BadParameter(f"{value!r} is not TABLE=N")
        found[table] = int(count)
    return found


speed = click.FloatRange(min=0, min_open=True)


@click.command()
@click.argument("recipe")
@set_option
@json_option
@click.option("--workers", type=click.IntRange(1), help="Workers to plan for; default cluster.workers.")
@click.option(
    "--batches", type=click.IntRange(1), default=20, show_default=True, help="Training batches to read."
)
@click.option("--run", metavar="DIR", help="Run folder or checkpoint that knows how many rows there are.")
@click.option("--rows", multiple=True, metavar="TABLE=N", callback=_rows, help="Rows of a table; repeatable.")
@click.option("--memory", metavar="SIZE", callback=_bytes, help="For rows, per worker, for example 4GiB.")
@click.option("--bandwidth", type=speed, help="Bytes/s between workers; default 1.25e9.")
@click.option("--latency", type=speed, help="Seconds of an empty all-to-all; default 200e-6.")
@click.option("--lookups", type=speed, help="Rows/s that a worker looks up; default by dim.")
@click.option("--updates", type=speed, help="Rows/s that a worker updates; default by dim.")
@click.option("--measure", is_flag=True, help="Measure on this machine what is not given.")
@debug_option
def plan(recipe: str, overrides: tuple[str, ...], as_json: bool, **facts: Any) -> None:
    """Say where the tables of RECIPE should live among workers, and what a step then costs.

    For workers that hold the tables together (cluster.exchange: collective). Reads some batches of the
    training data; trains nothing and changes nothing.
    """
    from satrap.config import load
    from satrap.launch.planning import Facts
    from satrap.launch.planning import plan as plan_of

    found = plan_of(load(recipe, overrides), Facts(**facts), notice=lambda text: click.echo(text, err=True))
    click.echo(json.dumps(found.to_dict(), indent=2) if as_json else found.report())
