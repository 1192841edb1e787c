"""`satrap key`."""

from pathlib import Path

import click

from satrap.cli.options import debug_option


@click.command()
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@debug_option
def key(file: Path) -> None:
    """Write a new key to FILE, a new file that only its owner can read.

    Servers and workers of a run share one key if they listen on addresses other than loopback. Copy the file
    to each machine and pass it with --key.
    """
    from satrap.rpc import create_key

    create_key(file)
    click.echo(f"{file}: pass it to each role, for example: satrap shard --listen HOST:PORT --key {file}")
