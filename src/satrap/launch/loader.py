"""The process of a loader: it reads and batches the rows of a recipe for the workers."""

from __future__ import annotations

from pathlib import Path

from satrap.config import Recipe, load
from satrap.data import Dataset
from satrap.data.loader import LoaderService
from satrap.errors import ConfigError
from satrap.events import Report
from satrap.launch.datasets import PARTS, open_part
from satrap.openmetrics import metrics_of
from satrap.rpc import read_key
from satrap.rpc.server.process import serve
from satrap.rpc.server.server import Server
from satrap.schema import Schema


def serve_rows(
    recipe: Path,
    listen: str,
    *,
    key_file: Path | None = None,
    metrics: str | None = None,
    report: Report = lambda _: None,
) -> None:
    """Read the rows of a recipe for workers until SIGTERM or SIGINT; prints one line when it is ready.

    Args:
        recipe: file; of its sections only `data` and what is read there count.
        listen: HOST:PORT; port 0 takes a free one, which the line names.
        key_file: of the cluster's key; needed for any address that others can reach.
        metrics: HOST:PORT of an OpenMetrics endpoint; None: none.
        report: called with `Ready`.

    Raises:
        ConfigError: an address, key or recipe that cannot be used.
    """
    loaded = load(recipe)
    service = LoaderService(lambda part, schema: _open(loaded, schema, part))
    server = Server(listen, service, key=read_key(key_file) if key_file else None)
    serve(server, metrics_of(server, metrics), report)


def _open(recipe: Recipe, schema: Schema, part: str) -> Dataset | None:
    if part not in PARTS:
        raise ConfigError(f"there is no part {part!r} of the data", fix=f"use one of {', '.join(PARTS)}")
    return open_part(recipe, schema, part)
