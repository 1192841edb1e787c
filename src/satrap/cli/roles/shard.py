"""`satrap shard`."""

from pathlib import Path

import click

from satrap.cli.options import debug_option, server_options
from satrap.runtime.events import Report


@click.command()
@server_options
@click.option(
    "--journal",
    metavar="FOLDER",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write every request to this folder before executing it; a restarted shard replays them.",
)
@debug_option
def shard(listen: str, key: Path | None, journal: Path | None, report: Report, metrics: str | None) -> None:
    """Serve one shard of the embedding tables until SIGTERM or Ctrl-C.

    The first worker that connects defines the tables. When the shard is ready, it prints its address on one
    line.
    """
    from satrap.exchange.servers import ShardServer
    from satrap.openmetrics import metrics_of, shard_values
    from satrap.rpc import read_key
    from satrap.rpc.server.process import serve

    server = ShardServer(listen, key=read_key(key) if key else None, journal=journal, rehearses=True)
    endpoint = metrics_of(server, lambda: shard_values(server.service.statistics()), metrics, report)
    serve(server, endpoint, report)
