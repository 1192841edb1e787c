"""Moves buckets between shards while no update is in flight: rows move to new owners, then maps change."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from satrap.errors import ConfigError, ExchangeError
from satrap.exchange.servers.client.rows import JOB_SECONDS, ServerRows
from satrap.exchange.servers.shard.access_counts import Counts as Uses
from satrap.exchange.shard_map import ShardMap
from satrap.exchange.states import largest
from satrap.rpc.client.call import told
from satrap.rpc.client.client import Client
from satrap.rpc.wire.frames import MessageKind
from satrap.rpc.wire.text import pack_text
from satrap.runtime.fault_points import hit
from satrap.store import BUCKETS, bucket_of
from satrap.store.buckets import runs_of

Counts = npt.NDArray[np.int64]
Buckets = npt.NDArray[np.int64]

UNDER_WAY = 2
"""Chunks of rows that targets load while the next one is read."""
CHUNK_ROWS = 8192
"""Most rows of a chunk: while one is read, others are sent and loaded."""
COUNTED = 16
"""Buckets whose rows a shard counts in one request."""


@dataclass(frozen=True, slots=True)
class Carried:
    """The volume of a move: `rows`, and the `bytes` of their ids, weights and optimizer state."""

    rows: int
    bytes: int


class Moves:
    """Moves buckets between the shards of an exchange.

    ```python
    new = exchange.map.after(owners, members)
    exchange.moves.rehearse(new, {2: "10.0.0.7:5000"})      # on rank 0, while training continues
    exchange.flush()                            # on all ranks; from here on, no rank sends requests
    exchange.moves.join(new, {2: "10.0.0.7:5000"})          # on all ranks
    carried = exchange.moves.carry(new)                     # on rank 0, then notify the others
    exchange.moves.adopt(new)                               # on all ranks
    ```

    Rows move unchanged, with their optimizer state. Ids that wait for admission are counted from zero again,
    and where rows are evicted, moved rows count as just used. If `carry` raises, nothing has moved: all ranks
    then call `abandon` instead of `adopt`.

    A shard with a journal may die and restart in between, since every step is a numbered request, which its
    journal repeats. If rank 0 dies, its generation of workers is over, and the next one brings its own map.

    Args:
        shards: the shards.
        rows: reads and writes their rows.
        tiered: whether a shard keeps rows on a disk.
        evicts: whether shards may evict rows to free space.
        backward: number format of gradients.
        hello: returns the hello to a new shard, given its number and the map.
        turn: called in the network thread to use another map from then on.
        map: returns the present map.
    """

    def __init__(
        self,
        shards: Client,
        rows: ServerRows,
        *,
        tiered: bool,
        evicts: bool,
        backward: str,
        hello: Callable[[int, ShardMap], dict[str, Any]],
        turn: Callable[[ShardMap], None],
        map: Callable[[], ShardMap],
    ) -> None:
        self._shards, self._rows = shards, rows
        self._tiered, self._evicts, self._backward = tiered, evicts, backward
        self._hello, self._turn, self._map = hello, turn, map

    @property
    def map(self) -> ShardMap:
        """The present map."""
        return self._map()

    def rows_by_bucket(self) -> tuple[Counts, Counts]:
        """Return the rows in each bucket, and their bytes, int64[4096] each; any thread may call it.

        Bytes cover weights and optimizer state. Shards count a few buckets at a time, so that lookups wait
        only briefly.
        """
        rows, size = np.zeros((2, BUCKETS), np.int64)
        for first in range(0, BUCKETS, COUNTED):
            some = slice(first, first + COUNTED)
            for about in self._census(range(BUCKETS)[some]).values():
                rows[some] += about["rows"]
                size[some] += about["bytes"]
        return rows, size

    def uses_by_bucket(self) -> Uses:
        """Return the recent use count of each bucket's rows, float64[4096]; any thread may call it.

        See `AccessCounts`. The counts of a bucket's former shards are included.
        """
        answers = self._shards.ask_all(MessageKind.STATISTICS, [pack_text({"uses": True})])
        uses = np.zeros(BUCKETS)
        for parts in answers:
            uses += np.frombuffer(parts[0], np.float64, BUCKETS)
        return uses

    def _census(self, buckets: Sequence[int]) -> dict[int, dict[str, Any]]:
        """Return, by shard, the `reshard_shard.census` of some buckets."""
        shards = list(self._shards.peers)
        runs = [[run.start, run.stop] for run in runs_of(buckets)]
        answers = self._shards.ask_all(MessageKind.STATISTICS, [pack_text({"buckets": runs})])
        return {shard: told(answer) for shard, answer in zip(shards, answers, strict=True)}

    def rehearse(self, map: ShardMap, addresses: Mapping[int, str]) -> None:
        """Let all shards run the requests of a move once, on other rows, so that the move is fast.

        Rank 0 calls this, concurrently with training. Shards that serve lookups rehearse in a thread.

        Args:
            map: any map that has all the shards.
            addresses: HOST:PORT of each shard that will `join`, by number.

        Raises:
            ConfigError: the shards have tiers, or a shard rejects the hello.
            ExchangeError: a shard cannot be reached; nothing has changed.
        """
        self._check_tier()

        def hello(shard: int) -> dict[str, Any]:
            return self._hello(shard, map) | {"rehearsal": self._backward}

        def done(shard: int) -> bool:
            asked = self._shards.ask(shard, MessageKind.STATISTICS, [serving[shard]])
            return bool(told(self._shards.wait(asked))["done"])

        serving = {shard: pack_text(hello(shard)) for shard in self._shards.peers}
        waiting = [shard for shard in serving if not done(shard)]
        if addresses:
            self._shards.another(addresses, {s: hello(s) for s in addresses}, epoch=map.epoch).close()
        while waiting := [shard for shard in waiting if not done(shard)]:
            time.sleep(JOB_SECONDS)

    def _check_tier(self) -> None:
        if self._tiered:
            raise ConfigError(
                "rows of shards with a tier cannot move",
                where="embedding.tier",
                why="the rows of a tier are on the disk of one machine",
                fix="resume the run with another cluster.shards",
            )

    def join(self, map: ShardMap, addresses: Mapping[int, str]) -> None:
        """Send a hello with a map to the shards that join; each rank does.

        Args:
            map: map of the next epoch.
            addresses: HOST:PORT of the shards that join, by number.

        Raises:
            ConfigError: the shards have tiers, or a shard rejects the hello.
            ExchangeError: a shard cannot be reached; the exchange has ended.
        """
        self._check_tier()
        hellos = {shard: self._hello(shard, map) for shard in addresses}
        self._shards.join(addresses, hellos, epoch=map.epoch)

    def carry(self, map: ShardMap) -> Carried:
        """Move each bucket to its owner in the next map; rank 0 does, after all ranks have called `join`.

        Raises:
            StoreError: a shard has no space; nothing has moved.
            ExchangeError: rows are missing at their destination; nothing has moved.
        """
        old, buckets = self.map, np.flatnonzero(self.map.owners != map.owners)
        census, owners = self._census(buckets.tolist()), map.owners[buckets]
        before = {shard: np.array(about["rows"], np.int64) for shard, about in census.items()}
        strangers = [int(s) for s, counts in before.items() if counts[owners == s].any()]
        if strangers:
            raise ExchangeError(f"shard {strangers[0]} has rows of buckets that it does not own")
        carried = self._copy(old, map, buckets)
        hit("move.copied")
        there = self._census(buckets.tolist())
        arrived = sum(int(np.array(about["rows"])[owners == s].sum()) for s, about in there.items())
        lost = sum(int(counts.sum()) for counts in before.values()) - arrived
        if lost and not self._evicts:
            raise ExchangeError(f"{lost} rows did not reach their new shards")
        # Only now: until a shard has the new map, it keeps the rows that have moved, so a failure loses
        # nothing.
        self._commit(map, {shard: about for shard, about in census.items() if shard in old.members})
        return carried

    def _copy(self, old: ShardMap, map: ShardMap, buckets: Buckets) -> Carried:
        rows, size, waiting, owners = 0, 0, deque[list[Future[Any]]](), map.owners

        def load(most: int) -> None:
            while len(waiting) > most:
                for answer in waiting.popleft():
                    self._shards.wait(answer)

        for shard in old.members:
            runs = runs_of(buckets[old.owners[buckets] == shard].tolist())
            for chunk in self._rows.export(shard, None, runs, rows=CHUNK_ROWS) if runs else ():
                rows += len(chunk.ids)
                size += chunk.ids.nbytes + chunk.weights.nbytes + chunk.state.nbytes
                targets = owners[bucket_of(chunk.table, chunk.ids)]
                waiting.append(self._rows.send(chunk.table, chunk, targets))
                load(UNDER_WAY)
        load(0)
        return Carried(rows, size)

    def _commit(self, map: ShardMap, old: Mapping[int, Mapping[str, Any]]) -> None:
        """Send the map to all shards; new ones also get the counters of the `old` ones, see `_census`."""
        plain = {"map": map.to_dict()}
        counts = largest(about["counts"] for about in old.values())
        texts = {shard: plain if shard in old else {**plain, "counts": counts} for shard in map.members}
        pending = {
            shard: self._shards.ask(shard, MessageKind.MAP, [pack_text(text)])
            for shard, text in texts.items()
        }
        for shard, answer in pending.items():
            self._shards.wait(answer)
            self._shards.peers[shard].epoch = map.epoch
            hit("move.mapped")

    def adopt(self, map: ShardMap) -> None:
        """Use a map for all requests from now on, and close shards that are not in it; each rank does."""
        hit("move.adopt")

        def turn() -> None:
            for shard, peer in self._shards.peers.items():
                if shard in map.members:
                    peer.epoch = map.epoch
            self._turn(map)

        self._leave(map, turn)

    def abandon(self, *, tidy: bool) -> None:
        """Continue with the present map, after `carry` has raised; each rank does.

        Args:
            tidy: also let the shards drop the rows they have loaded; rank 0 does.
        """
        self._leave(self.map, lambda: None)
        if tidy:
            self._shards.ask_all(MessageKind.MAP, [pack_text({"map": self.map.to_dict()})])

    def _leave(self, map: ShardMap, then: Callable[[], None]) -> None:
        """Send a goodbye to shards that are not in a map; in the network thread, remove them, call `then`."""
        shards = [shard for shard in self._shards.peers if shard not in map.members]
        for goodbye in [self._shards.ask(shard, MessageKind.BYE) for shard in shards]:
            self._shards.wait(goodbye)
        self._shards.leave(shards, then)
