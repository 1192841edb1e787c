"""`satrap serve-shard`."""

import re
from typing import Any

import click

from satrap.cli.options import debug_option, server_options, set_option, trust_option
from satrap.events import Report


def _numbers(_: click.Context, __: click.Parameter, value: str) -> tuple[int, int]:
    """Return the number of a shard and of all shards."""
    if (found := re.fullmatch(r"(\d{1,4})/(\d{1,4})", value)) is None:
        raise click.BadParameter(f"{value!r} is no I/N, such as 0/2")
    return int(found[1]), int(found[2])


@click.command("serve-shard")
@click.argument("folder", metavar="DIR")
@click.option(
    "--shard",
    "numbers",
    required=True,
    metavar="I/N",
    callback=_numbers,
    help="Which of how many shards this is, from 0: 0/2 and 1/2 are all of two.",
)
@server_options
@click.option("--follow", is_flag=True, help="Take each new version of a run that trains.")
@trust_option
@set_option
@debug_option
def serve_shard(
    folder: str, numbers: tuple[int, int], overrides: tuple[str, ...], report: Report, **options: Any
) -> None:
    """Have some of the rows of the trained model in run folder DIR, for `satrap serve --shards`.

    A table that is too large for one machine is divided among N such processes. The server asks all of them
    for the rows of exactly one version, and answers with that. When the rows are loaded, the shard prints its
    address in one line.
    """
    from satrap import launch
    from satrap.serve.serve_shard import ShardOptions, run

    own = ShardOptions(number=numbers[0], shards=numbers[1], **options)
    run(launch.RunFolder.open(folder), own, overrides, click.echo, report)
