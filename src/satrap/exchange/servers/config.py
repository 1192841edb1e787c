"""The table configuration in a client's hello to a shard server, as plain data."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from satrap.errors import ConfigError
from satrap.exchange.shard_map import ShardMap
from satrap.exchange.wire.formats import CODES
from satrap.exchange.wire.sections import MAX_SECTIONS
from satrap.optim import from_dict
from satrap.rpc.wire.text import LARGEST, MAX_WORLD, shortened, whole
from satrap.runtime.arguments import checked
from satrap.schema import Table
from satrap.store import BUCKETS, Admission, Eviction, Shard, StoreConfig, Tier
from satrap.store.shard import open_store

MAX_RUN = 64
"""Characters of a run's identity."""
_LARGEST_SEED = 1 << 128
OWN_RUN = secrets.token_hex(8)
"""Default identity of a run: all clients of this process that name none belong to one run."""


def without_tables() -> ConfigError:
    """Return the error of processes that would hold rows, but have no tables."""
    return ConfigError(
        "there are no tables",
        why="an exchange only serves rows of tables",
        fix="leave Place.exchange out: a network without tables needs no rows",
    )


@dataclass(frozen=True, slots=True)
class ShardConfig:
    """All settings that the rows of one shard depend on; equal for all its clients.

    Args:
        tables: with an optimizer each; their memory is this shard's share.
        store: initialization and limits of rows on this shard; memory and tier are its own share.
        shard: index of this shard.
        map: the map of all shards, with the owner of each bucket.
    """

    tables: Sequence[Table]
    store: StoreConfig
    shard: int
    map: ShardMap

    def to_dict(self) -> dict[str, Any]:
        """Return plain data that `from_dict` reads."""
        plain = {"tables": tables_to_dicts(self.tables), "shard": self.shard}
        return {**plain, **self.map.to_dict(), **store_to_dict(self.store)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ShardConfig:
        """Build it from `to_dict` data.

        Raises:
            ConfigError: a value is missing or invalid.
        """
        try:
            made = cls(
                [_table(table) for table in data["tables"]],
                StoreConfig(
                    whole(data, "seed", -_LARGEST_SEED, _LARGEST_SEED),
                    None if data["memory"] is None else whole(data, "memory", 1, LARGEST),
                    _built(Admission, data["admission"]),
                    _built(Eviction, data["eviction"]),
                    _built(Tier, data["tier"]),
                ),
                whole(data, "shard", 0, BUCKETS),
                ShardMap.from_dict(data),
            )
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise ConfigError(f"a hello lacks a value or has an invalid one: {error}") from error
        if not made.tables:
            raise without_tables()
        if made.shard not in made.map.members:
            raise ConfigError(f"unknown shard {made.shard}: the map has {made.map.shards} shards")
        return made

    def difference(self, other: ShardConfig) -> str:
        """Return the first difference as text; empty if there is none."""
        mine, theirs = self._parts(), other._parts()
        different = (key for key in mine if mine[key] != theirs.get(key))
        key = next(different, None)
        return "" if key is None else f"{key} {mine[key]} here, {theirs.get(key)} requested"

    def _parts(self) -> dict[str, object]:
        parts = {
            "shard": self.shard,
            **{key: getattr(self.map, key) for key in ("shards", "epoch", "digest")},
        }
        tables = {f"table {table.name!r}:": table for table in self.tables}
        return {**parts, **store_to_dict(self.store), **tables, "tables": [t.name for t in self.tables]}

    def open(self) -> Shard:
        """Create the store.

        Raises:
            ConfigError: more table groups than a message can carry.
        """
        store = open_store(self.store, self.tables)
        if (groups := len(store.groups)) > MAX_SECTIONS:
            store.close()
            raise ConfigError(
                f"the tables form {groups} groups, but a message can carry only {MAX_SECTIONS}",
                why="tables share a group only if dim, optimizer, number format, admission and eviction "
                "are equal, and none has its own memory",
                fix="use fewer different dims, optimizers and settings of single tables",
            )
        return store


@checked()
@dataclass(frozen=True, slots=True)
class WorkerId:
    """The run, generation and rank of the worker that a client belongs to.

    Args:
        rank, world: number of the worker, and number of all workers, default 0 of 1; at most 65,536.
        generation: generation of the group of workers, default 0. Shards that receive a newer one start again
            without rows, and no longer serve older ones.
        run: identity of the run, the same for all its workers, at most 64 characters; default: one generated
            by this process. A shard serves one run at a time, until all its clients are closed; it then keeps
            its rows for that run, and starts again without rows for any other. Name the run to return to its
            rows from another process.

    Raises:
        ConfigError: a value out of range: `rank` must be below `world`.
    """

    rank: int = 0
    world: int = 1
    generation: int = 0
    run: str = OWN_RUN

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world <= MAX_WORLD:
            raise ConfigError(
                f"rank must be 0 to world - 1, got rank {self.rank}, world {self.world}",
                why=f"there are at most {MAX_WORLD} workers",
            )
        if not 0 <= self.generation <= LARGEST or len(self.run) > MAX_RUN:
            raise ConfigError(
                f"invalid generation {shortened(self.generation)} or run {shortened(self.run)}",
                why=f"a generation is 0 to {LARGEST}, and a run has at most {MAX_RUN} characters",
            )


@dataclass(frozen=True, slots=True)
class Worker:
    """The description of a worker in its hello.

    Args:
        id: run, generation and rank.
        forward: code of the number format of rows sent to it.
        gated: its requests wait until optimizer steps are complete (`sync` with several workers).
        ordered: its lookups of a step also wait for the lookups of lower ranks.
        completed: complete steps of a gated worker's run: not 0 where a shard joins later.
    """

    id: WorkerId
    forward: int
    gated: bool
    ordered: bool
    completed: int = 0

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Worker:
        """Build it from a hello.

        Raises:
            ConfigError: a value is missing or invalid.
        """
        values: dict[str, Any] = {"mode": "hybrid", "run": "", "completed": 0, **data}
        for key, known in (("mode", ("sync", "hybrid")), ("forward", tuple(CODES))):
            if values.get(key) not in known:
                raise ConfigError(f"a hello has an unknown {key}: {shortened(values.get(key))}")
        worker = WorkerId(**{f.name: values[f.name] for f in fields(WorkerId) if f.name in values})
        gated = values["mode"] == "sync" and worker.world > 1
        completed = whole(values, "completed", 0, LARGEST) if gated else 0
        ordered = gated and values.get("ordered") is True
        return cls(worker, CODES[values["forward"]], gated, ordered, completed)


def _built(kind: type[Any], plain: Any) -> Any:
    """Return the dataclass of plain data, which checks its types; other values unchanged."""
    if not isinstance(plain, dict):
        return plain
    values = {f.name: plain[f.name] for f in fields(kind)}
    if any(isinstance(value, int) and value > LARGEST for value in values.values()):
        raise ConfigError(f"a hello has an invalid {kind.__name__.lower()}: {shortened(values)}")
    return kind(**values)


def _table(plain: Mapping[str, Any]) -> Table:
    kinds = {"admission": Admission, "eviction": Eviction}
    made = {key: _built(kind, plain[key]) for key, kind in kinds.items() if key in plain}
    if plain.get("memory") is not None:
        whole(plain, "memory", 1, LARGEST)
    return Table(**{**plain, **made, "optimizer": from_dict(plain["optimizer"])})


def store_to_dict(store: StoreConfig) -> dict[str, Any]:
    """Return the settings of a store, without its tables, as plain data."""
    plain = asdict(store)
    del plain["initial_scale"], plain["dtype"], plain["tables"]  # every table has its own values
    return plain


def tables_to_dicts(tables: Sequence[Table]) -> list[dict[str, Any]]:
    """Return tables as plain data.

    Raises:
        ConfigError: a table has no optimizer.
    """
    plain = []
    for table in tables:
        if table.optimizer is None:
            raise ConfigError(
                f"table {table.name!r} has no optimizer", fix="give the table one of satrap.optim"
            )
        plain.append(asdict(table) | {"optimizer": table.optimizer.to_dict()})
    return plain
