"""`satrap serve-shard`."""

import re
from typing import Any

import click

from satrap.cli.options import debug_option, server_options, set_option, trust_option
from satrap.runtime.events import Report


def _numbers(_: click.Context, __: click.Parameter, value: str) -> tuple[int, int]:
    """Return a shard's number and the number of shards."""
    if (match := re.fullmatch(r"(\d{1,4})/(\d{1,4})", value)) is None:
        raise click.BadParameter(f"{value!r} is not I/N, such as 0/2")
    return int(match[1]), int(match[2])


@click.command("serve-shard")
@click.argument("folder", metavar="DIR")
@click.option(
    "--shard",
    "numbers",
    required=True,
    metavar="I/N",
    callback=_numbers,
    help="Number of this shard, from 0, and number of shards: 0/2 and 1/2 for two shards.",
)
@server_options
@click.option("--follow", is_flag=True, help="Load each new version of a running training.")
@trust_option
@set_option
@debug_option
def serve_shard(
    folder: str, numbers: tuple[int, int], overrides: tuple[str, ...], report: Report, **options: Any
) -> None:
    """Hold some of the rows of the trained model in run folder DIR, for `satrap serve --shards`.

    N such processes share tables that are too large for one machine. For each request, the server looks up
    the rows of one version at all of them. When the rows are loaded, the shard prints its address on one
    line.
    """
    from satrap import launch
    from satrap.serve.shards.process import ShardOptions, run

    settings = ShardOptions(number=numbers[0], shards=numbers[1], **options)
    run(launch.RunFolder.open(folder), settings, overrides, click.echo, report)
