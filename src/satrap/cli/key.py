"""`satrap key`."""

from pathlib import Path

import click

from satrap.cli.options import debug_option


@click.command()
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@debug_option
def key(file: Path) -> None:
    """Write a new key to FILE, which must not exist; only its owner may read it.

    The servers and workers of a run that listen on other addresses than loopback share one: copy the file to
    each machine, and give it with --key.
    """
    from satrap.rpc import create_key

    create_key(file)
    click.echo(f"{file}: give it to each role: satrap shard --listen HOST:PORT --key {file}")
