"""A served model whose rows are in shards, and its follower."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from satrap.checkpoint import Series
from satrap.checkpoint.files.storage import Storage
from satrap.checkpoint.manifest import read_manifest
from satrap.errors import CheckpointError, SatrapError, StoreError
from satrap.exchange import LocalExchange, Lookup, LookupRequest
from satrap.exchange.local import LocalTelemetry
from satrap.exchange.lookup import Array
from satrap.exchange.split import Splitter
from satrap.exchange.wire.rows import RowReplies, sections_of
from satrap.exchange.wire.sections import pack, unpack
from satrap.rpc.wire.frames import Buffer, as_bytes
from satrap.serve.http.errors import RequestError
from satrap.serve.operator import PATH
from satrap.serve.scoring.model import ServedModel
from satrap.serve.scoring.scorer import Scorer
from satrap.serve.shards.connections import ShardConnection, ShardLinks, unavailable
from satrap.serve.versions.follow import Follower
from satrap.serve.versions.history import VersionHistory
from satrap.serve.versions.update import Update
from satrap.store import Shard
from satrap.store.statistics import TierStatistics


class ShardedRows(LocalExchange):
    """An exchange that reads the rows of one version from shards; the store of this process is empty.

    Args:
        shard: a store with the same tables, which stays empty.
        links: links to the shards, which must all have answered; `close` closes them.
        version: id of the version to read.

    Raises:
        ConfigError: the shards group their tables differently.
    """

    def __init__(self, shard: Shard, *, links: ShardLinks, version: str) -> None:
        super().__init__(shard, buckets=range(0))
        self.links = links
        self.groups = links.groups()
        self.telemetry = LocalTelemetry(shard, self.groups)
        self._splitter = Splitter(self.groups, links.map)
        self.version = version

    @property
    def version(self) -> str:
        """Id of the version to read; set it between two lookups."""
        return self.links.holds

    @version.setter
    def version(self, id: str) -> None:
        self.links.holds = id

    def peek(self, requests: Sequence[LookupRequest]) -> list[Array]:
        """Return rows float32[ids, dim] of each request, all of `version`.

        Raises:
            RequestError: a shard is unreachable, or does not have the version.
        """
        lookup = Lookup[Array](list(requests))
        lookup.places = [self._splitter.split(request) for request in requests]
        targets = [
            (number, link)
            for number, link in enumerate(self.links.links)
            if any(len(parts[number].ids) for parts in lookup.places)
        ]
        widths = [self.groups[request.group].dim for request in requests]
        if not targets:
            return [np.empty((0, width), np.float32) for width in widths]
        replies = RowReplies(lookup.requests, lookup.places, widths, "shard")
        version = self.version
        pending = [
            (number, link, link.ask(pack(sections_of(requests, lookup.places, number)), version))
            for number, link in targets
        ]
        for number, link, answer in pending:
            try:
                parts = answer.result()
                replies.put(number, unpack(self._counted(link, parts, lookup, number)))
            except StoreError as error:  # the shard has dropped the version, or rejects the request
                raise unavailable(f"{link.name}: {error.what}") from error
            except SatrapError as error:
                link.lost(error)
                raise unavailable(link.trouble(version)) from error
        return replies.rows

    def _counted(
        self, link: ShardConnection, parts: Sequence[Buffer], lookup: Lookup[Array], number: int
    ) -> Sequence[Buffer]:
        """Count the ids without a row in a shard; return the parts with the rows."""
        sizes = [len(self.groups[request.group].tables) for request in lookup.requests]
        if not parts or len(raw := as_bytes(parts[0])) != 8 * sum(sizes):
            raise unavailable(f"{link.name} is not a satrap serve-shard: the answer has the wrong format")
        unseen = np.split(raw.view(np.int64), np.cumsum(sizes)[:-1])
        for request, places, counts in zip(lookup.requests, lookup.places, unseen, strict=True):
            part = places[number]
            self.telemetry.count_unseen(LookupRequest(request.group, part.ids, part.splits), counts)
        return parts[1:]

    def close(self) -> None:
        """Close the links to the shards."""
        self.links.close()
        super().close()


class SharedHistory(VersionHistory):
    """The earlier versions that all shards have, to which a server can roll back.

    Args:
        store: the server's store, without rows.
        rows: reads from the shards.
        step: returns the served step.
    """

    def __init__(self, store: Shard, rows: ShardedRows, step: Callable[[], int]) -> None:
        super().__init__(store, keep=0, most_bytes=0)
        self._rows, self._step = rows, step

    @property
    def steps(self) -> list[int]:
        """The steps of the versions, ascending."""
        return [version.step for version in self._rows.links.common() if version.step < self._step()]


class ShardedModel(ServedModel):
    """A `ServedModel` whose predictor has `ShardedRows`.

    `prepare` reads only the network of a version. After `apply`, lookups read the rows of that version.
    """

    remote = True

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        assert isinstance(self._exchange, ShardedRows)
        self._shards = self._exchange
        self.trouble = lambda: self._shards.links.trouble(self.version)
        self.history = SharedHistory(self._shards.shard, self._shards, lambda: self.step)

    def apply(self, update: Update) -> None:
        """See `ServedModel.apply`; any version may follow any other."""
        super().apply(update)
        self.fold()  # the overlay has no rows, so this only closes it
        self._shards.version = update.version

    def rows(self) -> Mapping[str, int]:
        """Return the number of rows of all shards by table."""
        totals: dict[str, int] = {}
        for link in self._shards.links.links:
            for table, rows in link.status.get("rows", {}).items():
                totals[table] = totals.get(table, 0) + rows
        return totals

    def stored(self) -> tuple[int, TierStatistics]:
        """Return the bytes of memory of all shards' rows; the tier counts are only in the shards' metrics."""
        return sum(int(link.status.get("bytes", 0)) for link in self._shards.links.links), TierStatistics()


class ShardsFollower(Follower):
    """A `Follower` that serves a version once all shards have it.

    It can roll back to versions that all shards still have. While a version is pinned, the shards keep it.
    Once their memory for earlier versions is full, they stop loading new versions.

    Args:
        series: the versions.
        links: links to the shards.
        scorer: scorer with the model.
        notice: called with a text about each rejected version.
    """

    def __init__(
        self, series: Series, links: ShardLinks, scorer: Scorer, *, notice: Callable[[str], object]
    ) -> None:
        super().__init__(series, self._no_model, scorer, notice=notice)
        self._links = links

    @staticmethod
    def _no_model(step: int) -> ServedModel:
        raise AssertionError(f"a server of shards must not load the whole model of step {step}")

    def _ready(self, newest: int) -> int | None:
        common = self._links.common()
        return common[-1].step if common else None

    def steps(self) -> list[int]:
        """Return the steps of the versions that all shards have, ascending."""
        return [version.step for version in self._links.common()]

    def _take(self, step: int) -> None:
        version = next((v for v in self._links.common() if v.step == step), None)
        storage = Storage(self._series.place(step))
        manifest = read_manifest(storage)
        if version is None or version.id != manifest.id:
            raise CheckpointError(
                "the shards have another version of this step",
                where=storage.url,
                why="the run was resumed and has published the step again",
                fix="wait until the shards have loaded the next version",
            )
        served = self._scorer.model
        self._apply(served, served.prepare([(storage, manifest)]))

    def _go_back(self, step: int) -> None:
        self._take(step)

    def _reload(self, step: int) -> None:
        """Serve another version that all shards have; nothing is reloaded, unlike in `Follower`."""
        if step not in self.steps():  # a shard has dropped the version since the last check
            raise RequestError(
                503,
                f"the shards no longer have step {step}",
                fix=f"request one of the versions that GET {PATH} lists",
            )
        self._take(step)
