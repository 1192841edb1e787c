"""A serving shard: loads some of a model's rows, follows the run, and answers score servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

from satrap.checkpoint import Series
from satrap.checkpoint.chain import deltas_since
from satrap.checkpoint.feed import published_at
from satrap.checkpoint.files.storage import Storage
from satrap.checkpoint.manifest import Manifest, read_manifest, reading_settings
from satrap.config import Recipe
from satrap.errors import ConfigError
from satrap.exchange import LocalExchange
from satrap.exchange.shard_map import ShardMap
from satrap.launch.folder.run_folder import RunFolder
from satrap.launch.scoring import load_served, model_place, scoring_recipe
from satrap.openmetrics import metrics_of, shard_values
from satrap.rpc import check_listen, read_key
from satrap.rpc.server.process import serve
from satrap.rpc.server.server import Server
from satrap.runtime.events import Report
from satrap.serve.run import check_owner, followed, size_of
from satrap.serve.shards.kept_rows import KeptRows, RowVersions, Version
from satrap.serve.shards.rows_service import RowsService
from satrap.serve.versions.follow import FOLD_SECONDS
from satrap.serve.versions.update import changed_rows
from satrap.serve.versions.watch import Watcher, newest
from satrap.store import Shard

PAUSE_SECONDS = 0.001
"""Pause between two portions of an update that are written, so that lookups come first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardOptions:
    """Options of a serving shard.

    Args:
        listen: HOST:PORT; port 0 selects a free port.
        number: number of this shard.
        shards: number of shards.
        key: file with the key that score servers must have; None: no key is needed.
        metrics: HOST:PORT of the OpenMetrics endpoint; None: no endpoint.
        follow: load each new version of the run.
        trust: run the code in the folder even if another user owns it.
    """

    listen: str
    number: int
    shards: int
    key: Path | None = None
    metrics: str | None = None
    follow: bool = False
    trust: bool = False


class RowsFollower(Watcher):
    """Loads each new version of a shard's rows: in the background, only the changed rows if possible.

    If deltas connect the newest version of the shard to the new one, only their rows are read; otherwise all.

    Args:
        series: the versions.
        rows: the versions that the shard serves.
        buckets: fixed buckets of the shard.
        load: returns all rows of the version at a place.
        notice: called with a text about each version that cannot be used.
    """

    def __init__(
        self,
        series: Series,
        rows: RowVersions,
        buckets: Sequence[int],
        load: Callable[[str], KeptRows],
        *,
        notice: Callable[[str], object],
    ) -> None:
        super().__init__(series, rows.newest.step, notice)
        self._rows, self._buckets, self._load = rows, buckets, load

    @property
    def _step(self) -> int:
        return self._rows.newest.step

    def _take(self, step: int) -> None:
        deltas = deltas_since(self._series.place(step), self._rows.newest.id)
        if deltas is None:
            self._rows.add(self._load(self._series.place(step)))
            self.statistics.reloads += 1
            return
        for delta in deltas:  # one version per delta, so that all shards have the same versions
            self._change(*delta)

    def _change(self, storage: Storage, manifest: Manifest) -> None:
        version = version_of(storage, manifest)
        changed = changed_rows([(storage, manifest)], self._rows.store, self._buckets)
        while not self._rows.has_room():
            if self._stopping.wait(FOLD_SECONDS):
                changed.close()
                return
        self._rows.begin(version, changed)
        while self._rows.fold() and not self._stopping.wait(PAUSE_SECONDS):
            pass


def version_of(storage: Storage, manifest: Manifest) -> Version:
    """Return the version of a manifest; raise `CheckpointError` if its settings are invalid."""
    with reading_settings(storage.url):
        step = int(manifest.settings["steps"])
    return Version(step, manifest.id, published_at(manifest.settings, storage.url))


@dataclass(frozen=True, slots=True)
class RowsServer:
    """A serving shard whose rows are loaded.

    Args:
        server: answers requests; not started yet.
        service: service of the server.
        follower: loads later versions; None: the shard does not follow the run.
    """

    server: Server
    service: RowsService
    follower: RowsFollower | None

    @classmethod
    def load(
        cls,
        folder: RunFolder,
        options: ShardOptions,
        overrides: Sequence[str],
        say: Callable[[str], object],
    ) -> Self:
        """Load a shard's rows of the trained model or, with `follow`, of the newest version.

        See `run` for arguments and errors.
        """
        if not 0 <= options.number < options.shards:
            raise ConfigError(
                f"shard {options.number} of {options.shards} does not exist",
                fix=f"number shards from 0: --shard 0/{max(1, options.shards)}",
            )
        key = read_key(options.key) if options.key else None
        check_listen(options.listen, key)
        recipe = scoring_recipe(folder, [*overrides, "training.device=cpu"])
        if not options.trust:
            check_owner(folder, recipe)
        series = followed(folder, recipe) if options.follow else None
        map = ShardMap(options.shards)
        load = partial(rows_of, folder, recipe, map.buckets(options.number))

        def first(place: str) -> KeptRows:
            say(f"loading shard {options.number} of {options.shards} of {size_of(place)}")
            return load(place)

        loaded = first(model_place(folder, recipe)) if series is None else newest(series, first)
        keys = recipe.sections.serving
        rows = RowVersions(loaded, keep=keys.keep, most_bytes=keys.keep_memory)
        service = RowsService(rows, map, options.number)
        server = Server(options.listen, service, key=key)
        if series is None:
            return cls(server, service, None)
        buckets = map.buckets(options.number)
        return cls(server, service, RowsFollower(series, rows, buckets, load, notice=say))


def rows_of(folder: RunFolder, recipe: Recipe, buckets: Sequence[int], place: str) -> KeptRows:
    """Return the rows of some fixed buckets of a saved model."""
    exchanges: list[LocalExchange] = []

    def exchange(store: Shard) -> LocalExchange:
        exchanges.append(LocalExchange(store, buckets=buckets))
        return exchanges[0]

    load_served(folder, recipe, place, exchange)
    storage = Storage(place)
    return KeptRows(exchanges[0].shard, version_of(storage, read_manifest(storage)))


def run(
    folder: RunFolder,
    options: ShardOptions,
    overrides: Sequence[str],
    say: Callable[[str], object],
    report: Report = lambda _: None,
) -> None:
    """Serve the rows of a shard until SIGTERM or SIGINT.

    Args:
        folder: the run folder.
        options: options of the shard.
        overrides: `key=value` texts for keys of `SCORING_KEYS`.
        say: called with each line to print.
        report: called with the events of the process.

    Raises:
        ConfigError: the shard number is invalid, another user's code would run, the address cannot be used,
            or the rows do not fit in memory.
    """
    shard = RowsServer.load(folder, options, overrides, say)
    values = lambda: shard_values(shard.service.statistics())  # noqa: E731
    endpoint = metrics_of(shard.server, values, options.metrics, report)
    try:
        with shard.follower or nullcontext():
            serve(shard.server, endpoint, report)
    finally:
        shard.service.free()
