"""Moves buckets between shards while no update is under way: rows go to new owners, and the map follows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from satrap.errors import ConfigError, ExchangeError
from satrap.exchange.servers.durability import ServersDurability
from satrap.exchange.servers.shards import Shards
from satrap.exchange.shard_map import ShardMap
from satrap.exchange.states import largest
from satrap.faults import hit
from satrap.rpc.client.call import told
from satrap.rpc.wire.frames import Kind
from satrap.rpc.wire.text import pack_text
from satrap.store import Chunk, bucket_of
from satrap.store.buckets import runs_of

Counts = npt.NDArray[np.int64]

UNDER_WAY = 2
"""Chunks of rows that targets load while the next one is read."""


@dataclass(frozen=True, slots=True)
class Carried:
    """What a move has carried: `rows`, and the `bytes` of their ids, weights and optimizer state."""

    rows: int
    bytes: int


@runtime_checkable
class Movable(Protocol):
    """An exchange whose rows are at shards that can give buckets to each other.

    Attributes:
        moves: moves them.
    """

    @property
    def moves(self) -> Moves:
        """Moves buckets between the shards."""


class Moves:
    """Moves buckets between the shards of an exchange.

    ```python
    exchange.flush()                            # on all ranks; from here on, no rank asks for anything
    new = exchange.map.after(owners, members)
    exchange.moves.join(new, {2: "10.0.0.7:5000"})          # on all ranks
    carried = exchange.moves.carry(new)                     # on rank 0, then tell the others
    exchange.moves.adopt(new)                               # on all ranks
    ```

    Rows move as they are, with their optimizer state. Ids that wait for admission start counting anew, and
    where rows are evicted, moved rows count as just used. If `carry` raises, nothing has moved: all ranks
    then call `abandon` in place of `adopt`.

    A shard with a journal may die and come back in between, since every step is a numbered request, which
    its journal repeats. If rank 0 dies, its generation of workers is over, and the next one brings a map of
    its own.

    Args:
        shards: the shards.
        durability: reads and writes their rows.
        tables: names of the tables.
        tiered: whether a shard keeps rows on a disk.
        evicts: whether shards may evict rows to make room.
        hello: returns what a new shard hears first, given its number and the map.
        turn: called in the network's thread to use another map from then on.
        map: returns the map of now.
    """

    def __init__(
        self,
        shards: Shards,
        durability: ServersDurability,
        tables: list[str],
        *,
        tiered: bool,
        evicts: bool,
        hello: Callable[[int, ShardMap], dict[str, Any]],
        turn: Callable[[ShardMap], None],
        map: Callable[[], ShardMap],
    ) -> None:
        self._shards, self._durability, self._tables = shards, durability, tables
        self._tiered, self._evicts, self._hello, self._turn, self._map = tiered, evicts, hello, turn, map

    @property
    def map(self) -> ShardMap:
        """The map of now."""
        return self._map()

    def rows_by_bucket(self) -> dict[int, Counts]:
        """Return, by shard, the number of rows in each bucket, int64[4096]."""
        return {shard: np.array(about["rows"], np.int64) for shard, about in self._census().items()}

    def _census(self) -> dict[int, dict[str, Any]]:
        """Return, by shard, its "rows" in each bucket, and the "counts" of its updates."""
        shards = list(self._shards.peers)
        answers = self._shards.ask_all(Kind.STATISTICS, [pack_text({"buckets": True})])
        return {shard: told(answer) for shard, answer in zip(shards, answers, strict=True)}

    def join(self, map: ShardMap, addresses: Mapping[int, str]) -> None:
        """Greet the shards that join with a map; each rank does.

        Args:
            map: of the next epoch.
            addresses: HOST:PORT of the shards that join, by number.

        Raises:
            ConfigError: the shards have tiers, or one refuses the hello.
            ExchangeError: one cannot be reached; the exchange has ended.
        """
        if self._tiered:
            raise ConfigError(
                "rows of shards with a tier cannot move",
                where="embedding.tier",
                why="they are on the disk of one machine",
                fix="resume the run with another cluster.shards",
            )
        hellos = {shard: self._hello(shard, map) for shard in addresses}
        self._shards.join(addresses, hellos, epoch=map.epoch)

    def carry(self, map: ShardMap) -> Carried:
        """Give each bucket to its owner in the next map; rank 0 does, after all ranks have called `join`.

        Raises:
            StoreError: a shard has no room; nothing has moved.
            ExchangeError: rows are missing where they should be; nothing has moved.
        """
        old, moved = self.map, self.map.owners != map.owners
        census = self._census()
        before = {shard: np.array(about["rows"], np.int64) for shard, about in census.items()}
        strangers = [int(s) for s, counts in before.items() if counts[moved & (map.owners == s)].any()]
        if strangers:
            raise ExchangeError(f"shard {strangers[0]} has rows of buckets that are not its own")
        carried = self._copy(old, map, moved)
        hit("move.copied")
        expected = np.sum(list(before.values()), axis=0)
        there = self.rows_by_bucket()
        found = np.sum([np.where(map.owners == shard, rows, 0) for shard, rows in there.items()], axis=0)
        lost = int((expected - found)[moved].sum())
        if lost and not self._evicts:
            raise ExchangeError(f"{lost} rows did not reach their new shards")
        self._commit(map, {shard: about for shard, about in census.items() if shard in old.members})
        return carried

    def _copy(self, old: ShardMap, map: ShardMap, moved: npt.NDArray[np.bool_]) -> Carried:
        rows, size, waiting = 0, 0, deque[list[Future[Any]]]()
        for table, chunk in self._leaving(old, moved):
            rows += len(chunk.ids)
            size += chunk.ids.nbytes + chunk.weights.nbytes + chunk.state.nbytes
            waiting.append(self._durability.send(table, chunk, map.owners[bucket_of(table, chunk.ids)]))
            while len(waiting) > UNDER_WAY:
                self._finish(waiting.popleft())
        while waiting:
            self._finish(waiting.popleft())
        return Carried(rows, size)

    def _leaving(self, old: ShardMap, moved: npt.NDArray[np.bool_]) -> Iterator[tuple[str, Chunk]]:
        """Yield (table, rows) of the buckets that move."""
        for shard in old.members:
            runs = runs_of(np.flatnonzero(moved & (old.owners == shard)).tolist())
            for table in self._tables if runs else ():
                for chunk in self._durability.export(shard, table, runs):
                    yield table, chunk

    def _commit(self, map: ShardMap, old: Mapping[int, Mapping[str, Any]]) -> None:
        """Have all shards take the map; new ones also the counters of the `old` ones, see `_census`."""
        plain = {"map": map.to_dict()}
        counts = largest(about["counts"] for about in old.values())
        for shard in map.members:
            about = plain if shard in old else {**plain, "counts": counts}
            self._shards.wait(self._shards.ask(shard, Kind.MAP, [pack_text(about)]))
            self._shards.peers[shard].epoch = map.epoch
            hit("move.mapped")

    def adopt(self, map: ShardMap) -> None:
        """Ask the shards by a map from now on, and leave those that are not in it; each rank does."""

        def turn() -> None:
            for shard, peer in self._shards.peers.items():
                if shard in map.members:
                    peer.epoch = map.epoch
            self._turn(map)

        self._leave([shard for shard in self._shards.peers if shard not in map.members], turn)

    def abandon(self, *, tidy: bool) -> None:
        """Go on with the map of now, after `carry` has raised; each rank does.

        Args:
            tidy: also have the shards drop what they have loaded; rank 0 does.
        """
        map = self.map
        self._leave([shard for shard in self._shards.peers if shard not in map.members], lambda: None)
        if tidy:
            self._shards.ask_all(Kind.MAP, [pack_text({"map": map.to_dict()})])

    def _leave(self, shards: list[int], then: Callable[[], None]) -> None:
        """Say goodbye to shards; in the network's thread, forget them and call `then`."""
        for goodbye in [self._shards.ask(shard, Kind.BYE) for shard in shards]:
            self._shards.wait(goodbye)
        self._shards.leave(shards, then)

    def _finish(self, answers: list[Future[Any]]) -> None:
        for answer in answers:
            self._shards.wait(answer)
