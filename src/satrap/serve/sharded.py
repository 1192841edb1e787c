"""A served model whose rows are in shards, and how it comes to the next version."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from satrap.checkpoint import Series
from satrap.checkpoint.manifest import read_manifest
from satrap.checkpoint.storage import Storage
from satrap.errors import CheckpointError, SatrapError, StoreError
from satrap.exchange import LocalExchange, Lookup, Request
from satrap.exchange.local import LocalTelemetry
from satrap.exchange.lookup import Array
from satrap.exchange.servers.answers import Answers
from satrap.exchange.servers.client import sections_of
from satrap.exchange.servers.sections import pack
from satrap.exchange.split import Splitter
from satrap.rpc.client.call import Call
from satrap.rpc.wire.frames import Buffer, as_bytes
from satrap.serve.errors import RequestError
from satrap.serve.follow import Follower
from satrap.serve.history import History
from satrap.serve.model import ServedModel
from satrap.serve.scorer import Scorer
from satrap.serve.shards import Link, ShardLinks, unavailable
from satrap.serve.update import Update
from satrap.store import Shard
from satrap.store.statistics import TierStatistics


class ShardedRows(LocalExchange):
    """Brings rows of one version from shards; the store of this process has none.

    Args:
        shard: a store of the same tables, which stays empty.
        links: to the shards, all of which have answered; closed at the end.
        version: id of the version to ask for.

    Raises:
        ConfigError: the shards group their tables in different ways.
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
        """Id of the version that is asked for; set it between two lookups."""
        return self.links.holds

    @version.setter
    def version(self, id: str) -> None:
        self.links.holds = id

    def peek(self, requests: Sequence[Request]) -> list[Array]:
        """Return rows float32[ids, dim] of each request, all of `version`.

        Raises:
            RequestError: a shard is away, or does not have the version.
        """
        call: Call[list[Array]] = Call()
        lookup = Lookup[Array](list(requests))
        lookup.places = [self._splitter.split(request) for request in requests]
        asked = [
            (number, link)
            for number, link in enumerate(self.links.links)
            if any(len(parts[number].ids) for parts in lookup.places)
        ]
        widths = [self.groups[request.group].dim for request in requests]
        if not asked:
            return [np.empty((0, width), np.float32) for width in widths]
        answers = Answers(call, lookup, widths, len(asked))
        version = self.version
        coming = [
            (number, link, link.ask(pack(sections_of(requests, lookup.places, number)), version))
            for number, link in asked
        ]
        for number, link, answer in coming:
            try:
                parts = answer.result()
                answers.answer(number, self._counted(link, parts, lookup, number), None)
            except StoreError as error:  # it has let the version go, or refuses
                raise unavailable(f"{link.name}: {error.what}") from error
            except SatrapError as error:
                link.lost(error)
                raise unavailable(link.trouble(version)) from error
        return call.future.result()

    def _counted(
        self, link: Link, parts: Sequence[Buffer], lookup: Lookup[Array], number: int
    ) -> Sequence[Buffer]:
        """Count the ids that a shard has no rows for; return the parts with the rows."""
        sizes = [len(self.groups[request.group].tables) for request in lookup.requests]
        if not parts or len(raw := as_bytes(parts[0])) != 8 * sum(sizes):
            raise unavailable(f"{link.name} answers as no shard of served rows")
        unseen = np.split(raw.view(np.int64), np.cumsum(sizes)[:-1])
        for request, places, own in zip(lookup.requests, lookup.places, unseen, strict=True):
            part = places[number]
            self.telemetry.count_unseen(Request(request.group, part.ids, part.splits), own)
        return parts[1:]

    def close(self) -> None:
        """Leave the shards."""
        self.links.close()
        super().close()


class Kept(History):
    """The earlier versions that a server can go back to: those that all shards have.

    Args:
        store: of the server, without rows.
        rows: asks the shards.
        step: returns the served step.
    """

    def __init__(self, store: Shard, rows: ShardedRows, step: Callable[[], int]) -> None:
        super().__init__(store, keep=0, most_bytes=0)
        self._rows, self._step = rows, step

    @property
    def steps(self) -> list[int]:
        """The steps of the versions, ascending."""
        return [one.step for one in self._rows.links.common() if one.step < self._step()]


class ShardedModel(ServedModel):
    """A `ServedModel` whose predictor has `ShardedRows`.

    `prepare` reads the network of a version alone, and `apply` has the shards asked for its rows.
    """

    remote = True

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        assert isinstance(self._exchange, ShardedRows)
        self._shards = self._exchange
        self.trouble = lambda: self._shards.links.trouble(self.version)
        self.history = Kept(self._shards.shard, self._shards, lambda: self.step)

    def apply(self, update: Update) -> None:
        """See `ServedModel.apply`; any version may follow any other."""
        super().apply(update)
        self.fold()  # there are no rows: it only ends the overlay
        self._shards.version = update.version

    def rows(self) -> Mapping[str, int]:
        """Return the number of rows of all shards by table."""
        found: dict[str, int] = {}
        for link in self._shards.links.links:
            for table, rows in link.status.get("rows", {}).items():
                found[table] = found.get(table, 0) + rows
        return found

    def stored(self) -> tuple[int, TierStatistics]:
        """Return the memory of the rows of all shards in bytes; their metrics say what is on their disks."""
        return sum(int(link.status.get("bytes", 0)) for link in self._shards.links.links), TierStatistics()


class ShardsFollower(Follower):
    """A `Follower` that goes on to a version once all shards have it.

    It goes back to versions that all shards still have. While it keeps one, they keep it, too, as far as
    their memory for earlier versions goes; then they go no further.

    Args:
        series: the versions.
        links: to the shards.
        scorer: has the model.
        notice: called with a text about each refused version.
    """

    def __init__(
        self, series: Series, links: ShardLinks, scorer: Scorer, *, notice: Callable[[str], object]
    ) -> None:
        super().__init__(series, self._no_model, scorer, notice=notice)
        self._links = links

    @staticmethod
    def _no_model(step: int) -> ServedModel:
        raise AssertionError(f"step {step} would be loaded as a whole")

    def _ready(self, newest: int) -> int | None:
        common = self._links.common()
        return common[-1].step if common else None

    def steps(self) -> list[int]:
        """Return the steps of the versions that all shards have, ascending."""
        return [version.step for version in self._links.common()]

    def _take(self, step: int) -> None:
        version = next((one for one in self._links.common() if one.step == step), None)
        storage = Storage(self._series.place(step))
        manifest = read_manifest(storage)
        if version is None or version.id != manifest.id:
            raise CheckpointError(
                "this is another version of the step than the shards have",
                where=storage.url,
                why="the run was resumed and has published the step again",
                fix="wait: the shards take the next one",
            )
        served = self._scorer.model
        self._apply(served, served.prepare([(storage, manifest)]))

    def _go_back(self, step: int) -> None:
        self._take(step)

    def _reload(self, step: int) -> None:
        """Serve a later version that all shards have; the one that is loaded as a whole elsewhere."""
        if step not in self.steps():  # it has gone since it was looked for
            raise RequestError(503, f"the shards do not have step {step} any more", fix="ask for another one")
        self._take(step)
