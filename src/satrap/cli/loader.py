"""`satrap loader`."""

from __future__ import annotations

from pathlib import Path

import click

from satrap.cli.options import debug_option, server_options
from satrap.events import Report


@click.command()
@click.argument("recipe", type=click.Path(path_type=Path))
@server_options
@debug_option
def loader(recipe: Path, listen: str, key: Path | None, report: Report, metrics: str | None) -> None:
    """Read and batch the rows of RECIPE for workers until SIGTERM or Ctrl-C.

    Workers ask for a part, a share and a position of the data. When the loader is ready, it prints its
    address in one line.
    """
    from satrap.launch.loader import serve_rows

    serve_rows(recipe, listen, key_file=key, metrics=metrics, report=report)
