"""Decides about requests to the shards of a run: one at a time, each carried out, rejected or given up."""

from __future__ import annotations

from collections import deque
from typing import Any, cast

from satrap.config import Recipe
from satrap.errors import ConfigError, ExchangeError, SatrapError
from satrap.exchange.shard_map import ShardMap
from satrap.launch.cluster.actions import (
    Action,
    GiveOrder,
    KeepMap,
    MakeShardRoom,
    ReplyToRequest,
    RoleState,
    Say,
    StartServer,
    StopRole,
)
from satrap.launch.cluster.control_requests import ControlRequest
from satrap.launch.launchers.launcher import Stop
from satrap.train.resharding.requests import MEASURES, Measure, ReshardRequest, ReshardResult

READY_SECONDS = 120.0
"""Seconds for servers to start; imports may take long on a busy machine."""

Roles = dict[str, RoleState]


def obstacles(recipe: Recipe) -> tuple[str, str]:
    """Return the reasons why rows cannot move, and why shards cannot be started or ended; empty: allowed."""
    sections = recipe.sections
    cluster, mesh = sections.cluster, sections.dense.mesh
    moves = {
        "the run has no shard servers (cluster.exchange: servers)": cluster.exchange != "servers",
        "embedding workers have their own connections to the shards": cluster.embedding_workers > 0,
        "workers in training.mode: async never wait for each other": sections.training.mode == "async",
        "several processes share the lookups of a batch (dense.mesh)": mesh.tensor * mesh.pipeline > 1,
        "the shards keep rows on disk (embedding.tier)": sections.embedding.tier is not None,
    }
    starts = {
        "the run did not start its shards (cluster.addresses)": bool(cluster.addresses),
    }
    first = (next((why for why, holds in each.items() if holds), "") for each in (moves, starts))
    return next(first), next(first)


class ShardRequests:
    """Users' requests about the shards, and the resulting shard map.

    A joining shard is started and stays aside until it is ready; then the workers receive an order. A drained
    shard is stopped. If the workers must restart during a request, the request is given up and the map stays
    unchanged: workers load a snapshot, and shards read their own rows.

    Args:
        map: which shard owns which bucket.
        fixed: the reason why rows cannot move; empty: they can.
        foreign: the reason why shards cannot be started or ended; empty: they can.

    Attributes:
        map: the current map.
    """

    def __init__(self, map: ShardMap, *, fixed: str = "", foreign: str = "") -> None:
        self.map, self._fixed, self._foreign = map, fixed, foreign
        self._waiting: deque[ControlRequest] = deque()
        self._now: ControlRequest | None = None
        self._joining = ""  # name of the joining role
        self._until: float | None = None  # its start deadline; None: the workers have the order
        self._epoch = map.epoch

    def ask(self, request: ControlRequest) -> list[Action]:
        """Accept a request, or reject it if it cannot be carried out."""
        if (error := self._refused(request)) is not None:
            return [ReplyToRequest(request.id, error)]
        self._waiting.append(request)
        return []

    def _refused(self, request: ControlRequest) -> ConfigError | None:
        why = self._fixed or (self._foreign if request.command in ("add", "drain") else "")
        if why:
            what = f"the shards of this run do not support the request {request.command}"
            return ConfigError(what, why=why, fix="resume the run with another cluster.shards")
        if request.command not in ("list", "add", "drain", "balance"):
            return ConfigError(f"unknown request {request.command!r} to shards")
        if request.by not in (MEASURES if request.command == "balance" else MEASURES[:1]):
            what = f"shards {request.command}: rows cannot move by {request.by!r}"
            return ConfigError(what, fix=f"balance by one of {', '.join(MEASURES)}")
        members = self.map.members
        if request.command != "drain" or (request.number in members and len(members) > 1):
            return None
        members_text = f"the shards are {', '.join(map(str, members))}"
        what = (
            f"unknown shard {request.number}"
            if request.number not in members
            else "the last shard cannot be drained"
        )
        return ConfigError(what, why=members_text, fix="see satrap shards list for the numbers")

    @property
    def busy(self) -> bool:
        """Whether a request is being carried out."""
        return self._now is not None

    def decide(self, now: float, roles: Roles) -> list[Action]:
        """Start a request, or check a joining shard; called while workers train, with the time in seconds."""
        if self._now is None:
            return self._begin(self._waiting.popleft(), now, roles) if self._waiting else []
        if self._until is None:
            return []
        role = roles[self._joining]
        if role.ready and role.code is None:
            role.aside, self._until = False, None  # it is now a regular shard
            return self._order({int(role.name.rpartition(" ")[2]): role.address})
        if role.code is not None or now > self._until:
            ending = role.ending if role.code is not None else f"was not ready after {READY_SECONDS:g} s"
            return self._end(ExchangeError(f"{role.name} {ending}", where=role.traces), roles)
        return []

    def _begin(self, request: ControlRequest, now: float, roles: Roles) -> list[Action]:
        if (error := self._refused(request)) is not None:  # an earlier request may have changed the map
            return [ReplyToRequest(request.id, error)]
        self._now = request
        if request.command != "add":
            return self._order({})
        taken = {name for name, role in roles.items() if role.code is None}
        number = next(n for n in range(4096) if n not in self.map.members and f"shard {n}" not in taken)
        self._joining, self._until = f"shard {number}", now + READY_SECONDS
        return [MakeShardRoom(number)]

    def has_room(self, error: SatrapError | None, roles: Roles) -> list[Action]:
        """Receive the error if the joining shard has no resources, else None."""
        if error is not None:
            request, self._now, self._until = self._now, None, None
            assert request is not None
            return [ReplyToRequest(request.id, error)]
        roles[self._joining] = RoleState(self._joining)
        roles[self._joining].aside = True
        return [Say(f"[{self._joining}] is starting and will join"), StartServer(self._joining, fresh=True)]

    def _order(self, join: dict[int, str]) -> list[Action]:
        request = self._now
        assert request is not None
        self._epoch += 1
        leave = (request.number,) if request.command == "drain" else ()
        survey, by = request.command == "list", cast(Measure, request.by)
        return [GiveOrder(ReshardRequest(request.id, leave, join, self._epoch, survey, by))]

    def answered(self, moved: ReshardResult, roles: Roles) -> list[Action]:
        """Receive the workers' result of an order."""
        request = self._now
        if request is None or request.id != moved.id:
            return []
        actions: list[Action] = [GiveOrder(None)]
        if moved.error is not None:
            return [*actions, *self._stopped_halfway(request, moved), *self._end(moved.error, roles)]
        if request.command == "list":
            return [*actions, *self._end(None, roles, self._listed(moved, roles))]
        before, self.map = self.map.epoch, moved.map
        self._epoch = max(self._epoch, moved.map.epoch)
        if request.command == "drain":
            drained = roles[f"shard {request.number}"]
            drained.aside = True
            actions.append(StopRole(drained.name, Stop.RELEASE))
        about, text = _about(request, moved), _said(request, moved)
        answer = {"said": text, **about, **self._listed(moved, roles)}
        saves = [KeepMap(self.map, about)] if self.map.epoch > before else []
        return [*actions, *saves, Say(text), *self._end(None, roles, answer)]

    def _stopped_halfway(self, request: ControlRequest, moved: ReshardResult) -> list[Action]:
        """Save the map of the completed moves before a failure; shards that own rows in this map stay."""
        self._epoch = max(self._epoch, moved.map.epoch)
        if moved.map.epoch == self.map.epoch:
            return []
        self.map, about = moved.map, _about(request, moved)
        what = (
            f"shards {request.command} stopped after {moved.carried:,} rows; satrap shards balance resumes it"
        )
        return [KeepMap(self.map, about), Say(what)]

    def _listed(self, moved: ReshardResult, roles: Roles) -> dict[str, Any]:
        """Return a line for each shard, as plain data."""
        owners = moved.map.owners
        return {
            "epoch": moved.map.epoch,
            "shards": [
                {
                    "shard": number,
                    "address": role.address if (role := roles.get(f"shard {number}")) else "",
                    "buckets": int((owners == number).sum()),
                    "rows": moved.rows.get(number, 0),
                    "bytes": moved.bytes.get(number, 0),
                    "traffic": moved.traffic.get(number),
                }
                for number in moved.map.members
            ],
        }

    def _end(
        self, error: SatrapError | None, roles: Roles, answer: dict[str, Any] | None = None
    ) -> list[Action]:
        """Answer the request; after an error, stop the joining shard unless it already owns rows."""
        request, self._now, self._until = self._now, None, None
        assert request is not None
        actions: list[Action] = []
        joined = request.command == "add" and int(self._joining.rpartition(" ")[2]) in self.map.members
        if error is not None and request.command == "add" and not joined:
            joining = roles[self._joining]
            joining.aside = True
            actions += [StopRole(joining.name, Stop.KILL)] if joining.code is None else []
        return [*actions, ReplyToRequest(request.id, error or answer or {})]

    def give_up(self, why: str, roles: Roles, *, final: bool = False) -> list[Action]:
        """Give up the current request; if `final`, also give up waiting requests."""
        actions: list[Action] = []
        error = ExchangeError(
            f"not all rows were moved: {why}", fix="repeat the request if the run continues"
        )
        if self._now is not None:
            actions = [GiveOrder(None), *self._end(error, roles)]
        while final and self._waiting:
            actions.append(ReplyToRequest(self._waiting.popleft().id, error))
        return actions


def _said(request: ControlRequest, moved: ReshardResult) -> str:
    if not moved.pauses:
        return (
            f"shards {request.command}: no rows moved, because moving whole buckets would hardly balance the "
            f""
            f"{request.by} of the shards better"
        )
    times = "once" if moved.pauses == 1 else f"{moved.pauses} times"
    return (
        f"shards {request.command}: {moved.carried:,} rows of {moved.buckets:,} buckets moved; training "
        f"paused {times}, for {moved.seconds:.3f} s at most and {moved.paused:.3f} s in all; shards now: "
        f"{', '.join(map(str, moved.map.members))}"
    )


def _about(request: ControlRequest, moved: ReshardResult) -> dict[str, Any]:
    """Return a record of the move, as plain data."""
    return {
        "command": request.command,
        "rows": moved.carried,
        "bytes": moved.carried_bytes,
        "buckets": moved.buckets,
        "seconds": moved.seconds,
        "pauses": moved.pauses,
        "paused": moved.paused,
    }
