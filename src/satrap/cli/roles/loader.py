"""`satrap loader`."""

from pathlib import Path

import click

from satrap.cli.options import debug_option, server_options
from satrap.runtime.events import Report


@click.command()
@click.argument("recipe", type=click.Path(path_type=Path))
@server_options
@debug_option
def loader(recipe: Path, listen: str, key: Path | None, report: Report, metrics: str | None) -> None:
    """Read and batch the rows of RECIPE for workers until SIGTERM or Ctrl-C.

    Workers request a part, a share and a position of the data. When the loader is ready, it prints its
    address on one line.
    """
    from satrap.launch.datasets import loader_service
    from satrap.openmetrics import loader_values, metrics_of
    from satrap.rpc import read_key
    from satrap.rpc.server.process import serve
    from satrap.rpc.server.server import Server

    service = loader_service(recipe)
    server = Server(listen, service, key=read_key(key) if key else None)
    endpoint = metrics_of(server, lambda: loader_values(service.statistics()), metrics, report)
    serve(server, endpoint, report)
