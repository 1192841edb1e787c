"""`satrap shards`: lists the shards of a running training and moves rows between them."""

from typing import Any

import click

from satrap.cli.options import debug_option, json_option
from satrap.cli.runs.requests import ask

run = click.argument("run", metavar="RUN")


@click.group()
def shards() -> None:
    """List, add, drain and balance the shards of a running training.

    RUN is the run folder. Training pauses while rows move; each command waits until it is done.
    """


@shards.command("list")
@run
@json_option
@debug_option
def list_(run: str, as_json: bool) -> None:
    """Show address, buckets, rows, bytes and share of the traffic of each shard.

    Traffic counts uses of rows in the last minutes. Uses older than five minutes count half or less.
    """
    _ask(run, "list", as_json=as_json)


@shards.command()
@run
@json_option
@debug_option
def add(run: str, as_json: bool) -> None:
    """Start one more shard and give it its share of the rows."""
    _ask(run, "add", as_json=as_json)


@shards.command()
@run
@click.argument("number", type=click.IntRange(min=0))
@json_option
@debug_option
def drain(run: str, number: int, as_json: bool) -> None:
    """Move all rows of shard NUMBER to the other shards, and end it."""
    _ask(run, "drain", number, as_json=as_json)


@shards.command()
@run
@click.option(
    "--by",
    type=click.Choice(["rows", "bytes", "traffic"]),
    default="rows",
    show_default=True,
    help="Quantity to balance: rows, their bytes, or their uses in the last minutes.",
)
@json_option
@debug_option
def balance(run: str, by: str, as_json: bool) -> None:
    """Move rows until all shards have equal rows, bytes or traffic."""
    _ask(run, "balance", by=by, as_json=as_json)


def _ask(run: str, command: str, number: int = -1, by: str = "rows", *, as_json: bool) -> None:
    """Send a request, wait for the answer, and show it."""
    answer = ask(run, command, number, by, as_json=as_json)
    if answer is None:
        return
    if "said" in answer:
        click.echo(answer["said"])
    for line in _table(answer["shards"]):
        click.echo(line)


def _table(shards: list[dict[str, Any]]) -> list[str]:
    lines = [f"{'shard':>5}  {'address':<22}{'buckets':>8}{'rows':>14}{'bytes':>18}{'traffic':>9}"]
    for shard in shards:
        numbers = f"{shard['buckets']:>8,}{shard['rows']:>14,}{shard['bytes']:>18,}"
        numbers += f"{shard['traffic']:>9.1%}" if shard.get("traffic") is not None else f"{'-':>9}"
        lines.append(f"{shard['shard']:>5}  {shard['address']:<22}{numbers}")
    return lines
