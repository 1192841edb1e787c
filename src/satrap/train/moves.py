"""Moves of buckets between shards while a run trains: between two steps, all workers carry them out."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from satrap.errors import ConfigError, SatrapError, error_of, error_values
from satrap.exchange.balance import balanced
from satrap.exchange.servers.moves import Movable, Moves
from satrap.exchange.shard_map import ShardMap
from satrap.train.desk import Desk, Moved, Order
from satrap.train.snapshots import Snapshots
from satrap.train.state import TrainingState

EVERY = 16
"""Steps between two looks at what is asked for, if there are several workers: they must look at the same."""


class Mover:
    """Carries out the orders of a desk, between two steps of all workers.

    Args:
        state: of the training.
        desk: None: nobody asks for anything.
        snapshots: an order waits while one is written.
    """

    def __init__(self, state: TrainingState, desk: Desk | None, snapshots: Snapshots) -> None:
        self._state, self._desk, self._snapshots = state, desk, snapshots
        self._workers, self._exchange = state.workers, state.exchange

    def stepped(self) -> None:
        """Carry out an order after a step, if there is one; all workers call it after every step."""
        if self._desk is None or self._state.apart:
            return
        alone = self._workers.size == 1
        if not alone and self._state.run.steps % EVERY:
            return
        order = self._desk.order() if self._workers.rank == 0 else None
        if order is not None and order.survey:
            self._desk.answer(self._surveyed(order))
            order = None
        wanted = order is not None and not self._snapshots.writing()
        if self._snapshots.anywhere(wanted):
            self._carry_out(order if wanted else None)

    @property
    def _moves(self) -> Moves:
        if not isinstance(self._exchange, Movable):
            raise ConfigError("the rows of this run are not at shard servers that could exchange them")
        return self._exchange.moves

    def _surveyed(self, order: Order) -> Moved:
        return Moved(order.id, self._moves.map, *self._sizes())

    def _sizes(self) -> tuple[dict[int, int], dict[int, int]]:
        """Return rows and bytes of each shard."""
        shards = [(one.shard, one) for one in self._exchange.telemetry.statistics().shards]
        known = [(number, one) for number, one in shards if number is not None]
        return {number: one.rows for number, one in known}, {number: one.bytes for number, one in known}

    def _carry_out(self, order: Order | None) -> None:
        """Wait until no update is under way anywhere; plan, join, carry, adopt, each step on all workers."""
        begun, workers, moves = time.perf_counter(), self._workers, self._moves
        self._exchange.flush()
        workers.meet("move of rows")
        plan: dict[str, Any] = {} if order is None else self._planned(order)
        plan = json.loads(workers.share(json.dumps(plan).encode()))
        old, map = moves.map, ShardMap.from_dict(plan["map"])
        moves.join(map, {int(number): address for number, address in plan["join"].items()})
        workers.meet("move of rows: shards joined")
        result: dict[str, Any] = {}
        workers.solo("move of rows: copied", lambda: result.update(self._carried(map)))
        result = json.loads(workers.share(json.dumps(result).encode()))
        if "error" in result:
            moves.abandon(tidy=workers.rank == 0)
        else:
            moves.adopt(map)
        workers.meet("move of rows: done")
        if order is not None and self._desk is not None:
            self._desk.answer(self._answer(order, old, result, time.perf_counter() - begun))

    def _planned(self, order: Order) -> dict[str, Any]:
        """Return the map that there will be, and who joins, as plain data."""
        old, rows = self._moves.map, self._moves.rows_by_bucket()
        members = sorted((set(old.members) | set(order.join)) - set(order.leave))
        owners = balanced(old.owners, np.sum(list(rows.values()), axis=0), members)
        map = old.after(owners, members, epoch=order.epoch)
        return {"map": map.to_dict(), "join": dict(order.join)}

    def _carried(self, map: ShardMap) -> dict[str, Any]:
        try:
            carried = self._moves.carry(map)
        except SatrapError as error:
            return {"error": error_values(error)}
        return {"rows": carried.rows, "bytes": carried.bytes}

    def _answer(self, order: Order, old: ShardMap, result: Mapping[str, Any], seconds: float) -> Moved:
        map = self._moves.map
        if "error" in result:
            return Moved(order.id, map, *self._sizes(), seconds=seconds, error=error_of(result["error"]))
        buckets = int(np.count_nonzero(old.owners != map.owners))
        about = {"carried": result["rows"], "carried_bytes": result["bytes"], "buckets": buckets}
        return Moved(order.id, map, *self._sizes(), **about, seconds=seconds)
