"""Moves buckets between shards while a run trains: in portions, each between two steps of all workers."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from satrap.errors import ConfigError, ExchangeError, SatrapError, error_of, error_values
from satrap.exchange.resharding.balance import balanced, gain, towards
from satrap.exchange.resharding.bucket_moves import Moves
from satrap.exchange.shard_map import ShardMap
from satrap.train.resharding.requests import RequestSource, ReshardRequest, ReshardResult
from satrap.train.state.across_workers import told
from satrap.train.state.snapshots import Snapshots
from satrap.train.state.training_state import TrainingState

Weights = npt.NDArray[np.int64]

EVERY = 16
"""Steps between two checks for orders, if there are several workers: all must check after the same step."""
FIRST_ROWS = 8192
"""Rows of the first portion of a move: its duration is not known yet."""
CARRY_SECONDS = 0.02
"""Target duration of carrying a portion; the size of the next one is adjusted accordingly."""
PAUSED = 1 / 16
"""Largest fraction of the time for which training pauses during a move."""
WORTH = 0.02
"""Part of a share by which a move must relieve the busiest shard, or no bucket moves: traffic always
fluctuates, and moving rows for a random improvement is not worth it."""
_PARTS = 2.0**40
"""Sum of the integer weights into which the traffic of all buckets is converted."""


class Mover:
    """Carries out the orders of a desk in portions, each between two steps of all workers.

    So pauses are short, whatever the number of rows: a portion is as many buckets as can be carried in about
    `CARRY_SECONDS`, at least one, and training continues for a while between two portions.

    Args:
        state: state of the training.
        desk: source of orders; None: there are none.
        snapshots: a portion waits while a snapshot is being written.
    """

    def __init__(self, state: TrainingState, desk: RequestSource | None, snapshots: Snapshots) -> None:
        self._state, self._desk, self._snapshots = state, desk, snapshots
        self._workers, self._exchange = state.workers, state.exchange
        self._course: Course | None = None  # at rank 0
        self._next = 0  # step after which all workers synchronize for the next portion; 0: no move is running

    def stepped(self) -> None:
        """Continue with an order after a step, if there is one; all workers call it after every step."""
        if self._desk is None or self._state.steps_alone:
            return
        steps = self._state.run.steps
        waits = steps < self._next if self._next else self._workers.size > 1 and steps % EVERY
        if waits:
            return
        if self._workers.rank == 0:
            self._look(self._desk, steps)
        course = self._course
        ready = course is not None and course.prepared and not self._snapshots.writing()
        # Only rank 0 knows whether a portion is ready. All workers take part in this call after the same
        # step, so that they start the portion together.
        if self._snapshots.any_worker(ready):
            self._carry_out(course)
        elif self._next:
            self._next = steps + EVERY

    @property
    def _moves(self) -> Moves:
        moves: Moves | None = self._exchange.moves
        if moves is None:
            raise ConfigError("shards cannot be rebalanced: the rows of this run are not at shard servers")
        return moves

    def _look(self, desk: RequestSource, steps: int) -> None:
        """Take the next order, if none is running; answer an order that cannot be carried out."""
        order = desk.order() if self._course is None else None
        if order is not None and order.survey:
            desk.answer(ReshardResult(order.id, self._moves.map, **self._sizes()))
        elif order is not None:
            self._course = Course(order, self._moves, steps)
        if self._course is not None and (error := self._course.failure) is not None:
            self._end(desk, self._course, error)
        elif self._course is not None and self._course.idle:
            self._end(desk, self._course, None)

    def _sizes(self) -> dict[str, Any]:
        """Return rows, bytes and traffic of each shard, by the fields of `ReshardResult`."""
        shards = [(shard.shard, shard) for shard in self._exchange.telemetry.statistics().shards]
        numbered = [(number, shard) for number, shard in shards if number is not None]
        rows = {number: shard.rows for number, shard in numbered}
        size = {number: shard.bytes for number, shard in numbered}
        uses, owners = self._moves.uses_by_bucket(), self._moves.map.owners
        parts = {number: float(uses[owners == number].sum() / uses.sum()) for number in rows if uses.any()}
        return {"rows": rows, "bytes": size, "traffic": parts}

    def _carry_out(self, course: Course | None) -> None:
        """Carry a portion while no update is in flight: join, carry, adopt, each on all workers."""
        started, workers, moves = time.perf_counter(), self._workers, self._moves
        steps = self._state.run.steps
        # Flushed on every worker before the barrier: behind it no request is split by the old map.
        self._exchange.flush()
        workers.meet("move of rows")
        plan: dict[str, Any] = {} if course is None else course.portion(started, steps)
        plan = told(workers, plan)
        map = ShardMap.from_dict(plan["map"])
        if plan["join"]:
            moves.join(map, {int(number): address for number, address in plan["join"].items()})
            workers.meet("move of rows: shards joined")
        carried = {} if course is None else course.carry(map, started)
        workers.meet("move of rows: copied")  # may take long; a barrier waits as long as rank 0 is alive
        result = told(workers, carried)
        if "error" in result:
            moves.abandon(tidy=workers.rank == 0)
        else:
            moves.adopt(map)
        # No worker sends a request under the new map before every shard and worker uses it.
        workers.meet("move of rows: done")
        self._next = steps + result["steps"] if "steps" in result else 0
        if course is not None:
            course.paused(started, steps)
            if not self._next and self._desk is not None:
                self._end(self._desk, course, error_of(result["error"]) if "error" in result else None)

    def _end(self, desk: RequestSource, course: Course, error: SatrapError | None) -> None:
        self._course = None
        desk.answer(
            ReshardResult(course.order.id, self._moves.map, **self._sizes(), **course.told(), error=error)
        )


class Course:
    """A running move, as seen by rank 0.

    Concurrently with training, shards rehearse, and the contents of each bucket are counted.

    Args:
        order: the order.
        moves: moves of the exchange.
        steps: steps of the run so far.
    """

    def __init__(self, order: ReshardRequest, moves: Moves, steps: int) -> None:
        self.order, self._moves, self._old = order, moves, moves.map
        self._rows, self._size = FIRST_ROWS, [0, 0]
        self._pauses: list[float] = []
        self._since, self._step_seconds = (time.perf_counter(), steps), math.inf
        old = moves.map
        self._members = sorted((set(old.members) | set(order.join)) - set(order.leave))
        self._goal, self._counts = old.owners, np.zeros(len(old.owners), np.int64)
        executor = ThreadPoolExecutor(1, "satrap-move")
        self._prepared = executor.submit(self._prepare)
        executor.shutdown(wait=False)

    def _prepare(self) -> None:
        old, order = self._old, self.order
        members = sorted({*old.members, *order.join})
        self._moves.rehearse(old.after(old.owners, members, epoch=order.epoch), order.join)
        self._counts, size = self._moves.rows_by_bucket()
        by = {"rows": lambda: self._counts, "bytes": lambda: size, "traffic": self._traffic}
        weights = by[order.by]()
        goal = balanced(old.owners, weights, self._members)
        worth = WORTH if order.by == "traffic" else 0.0
        if self._members != old.members or gain(old.owners, goal, weights, self._members) > worth:
            self._goal = goal

    def _traffic(self) -> Weights:
        """Return weights in proportion to the recent uses of the rows of each bucket, int64[4096]."""
        uses = self._moves.uses_by_bucket()
        if not uses.any():
            raise ExchangeError(
                "the shards cannot be balanced by traffic",
                why="no rows have been used since the shards began to count",
                fix="try again once the run has trained for a while",
            )
        parts: Weights = np.rint(uses * (_PARTS / uses.sum())).astype(np.int64)
        return parts

    @property
    def prepared(self) -> bool:
        """Whether the first portion may be carried."""
        return self._prepared.done()

    @property
    def idle(self) -> bool:
        """Whether nothing has to move, and no shard joins or leaves."""
        if not self.prepared or self._members != self._old.members:
            return False
        return bool((self._goal == self._old.owners).all())

    @property
    def failure(self) -> SatrapError | None:
        """Why nothing can be carried, if it is known; an error that is not a `SatrapError` is raised."""
        error = self._prepared.exception() if self._prepared.done() else None
        if error is not None and not isinstance(error, SatrapError):
            raise error
        return error

    def portion(self, begun: float, steps: int) -> dict[str, Any]:
        """Return the map of the next portion, and the shards that join with it, as plain data.

        Args:
            begun: start of the pause, in seconds of `time.perf_counter`.
            steps: steps of the run so far.
        """
        before, at = self._since
        self._step_seconds = (begun - before) / max(1, steps - at)
        now = self._moves.map
        owners = towards(now.owners, self._goal, self._counts, self._rows)
        last = bool((owners == self._goal).all())
        members = self._members if last else sorted({*now.members, *self._members})
        map = now.after(owners, members, epoch=self.order.epoch)
        join = {n: address for n, address in self.order.join.items() if n not in now.members}
        return {"map": map.to_dict(), "join": join}

    def carry(self, map: ShardMap, begun: float) -> dict[str, Any]:
        """Carry the portion that leads to a map.

        Returns:
            Its "error", or the "steps" until the next portion, or, after the last one, nothing.
        """
        start = time.perf_counter()
        try:
            carried = self._moves.carry(map)
        except SatrapError as error:
            return {"error": error_values(error)}
        end = time.perf_counter()
        self._size = [self._size[0] + carried.rows, self._size[1] + carried.bytes]
        self._rows = max(1, int(self._rows * min(2.0, CARRY_SECONDS / (end - start))))
        if map.members == self._members and (map.owners == self._goal).all():
            return {}
        return {"steps": max(1, math.ceil((end - begun) * (1 / PAUSED - 1) / self._step_seconds))}

    def paused(self, begun: float, steps: int) -> None:
        """Record a pause that has ended: its start, and the steps of the run so far."""
        self._since = time.perf_counter(), steps
        self._pauses.append(self._since[0] - begun)

    def told(self) -> Mapping[str, Any]:
        """Return the figures of the move, by the fields of `ReshardResult`."""
        buckets = int(np.count_nonzero(self._old.owners != self._moves.map.owners))
        about = {"carried": self._size[0], "carried_bytes": self._size[1], "buckets": buckets}
        pauses = {"pauses": len(self._pauses), "paused": sum(self._pauses)}
        return {**about, **pauses, "seconds": max(self._pauses, default=0.0)}
