"""The table configuration in a client's hello to a shard server, as plain data."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import Any

from satrap.errors import ConfigError
from satrap.exchange.shard_map import ShardMap
from satrap.exchange.wire.formats import CODES
from satrap.exchange.wire.sections import MAX_SECTIONS
from satrap.optim import from_dict
from satrap.retention import own_to_dict
from satrap.rpc.wire.text import LARGEST, MAX_WORLD, shortened, whole
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
        tables: with an optimizer each, in the format of `tables_to_dicts`; their memory is this shard's
            share.
        store: initialization and limits of rows on this shard; memory and tier are its own share.
        shard: index of this shard.
        map: the map of all shards, with the owner of each bucket.
    """

    tables: tuple[Mapping[str, Any], ...]
    store: StoreConfig
    shard: int
    map: ShardMap

    def to_dict(self) -> dict[str, Any]:
        """Return plain data that `from_dict` reads."""
        return {
            "tables": list(self.tables),
            "shard": self.shard,
            **self.map.to_dict(),
            **store_to_dict(self.store),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ShardConfig:
        """Build it from `to_dict` data.

        Raises:
            ConfigError: a value is missing or invalid.
        """
        try:
            number = partial(whole, data)
            made = cls(
                tables_to_dicts(tables_from_dicts(data["tables"])),
                StoreConfig(
                    number("seed", -_LARGEST_SEED, _LARGEST_SEED),
                    None if data["memory"] is None else number("memory", 1, LARGEST),
                    None if data["admission"] is None else _admission(data["admission"]),
                    None if data["eviction"] is None else _eviction(data["eviction"]),
                    None if data["tier"] is None else _tier(data["tier"]),
                ),
                number("shard", 0, BUCKETS),
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
        mine, theirs = ({"digest": config.map.digest, **config.to_dict()} for config in (self, other))
        for key in ("shard", "shards", "epoch", "digest", "seed", "memory", "admission", "eviction", "tier"):
            if mine[key] != theirs[key]:
                return f"{key} {mine[key]} here, {theirs[key]} requested"
        for here, requested in zip(self.tables, other.tables, strict=False):
            if here != requested:
                return f"table {here['name']!r}: {dict(here)} here, {dict(requested)} requested"
        if len(self.tables) != len(other.tables):
            return f"{len(self.tables)} tables here, {len(other.tables)} requested"
        return ""

    def open(self) -> Shard:
        """Create the store.

        Raises:
            ConfigError: more table groups than a message can carry.
        """
        store = open_store(self.store, tables_from_dicts(self.tables))
        if (groups := len(store.groups)) > MAX_SECTIONS:
            store.close()
            raise ConfigError(
                f"the tables form {groups} groups, but a message can carry only {MAX_SECTIONS}",
                why="tables share a group only if dim, optimizer, number format, admission and eviction "
                "are equal, and none has its own memory",
                fix="use fewer different dims, optimizers and settings of single tables",
            )
        return store


@dataclass(frozen=True, slots=True)
class WorkerId:
    """The run, generation and rank of the worker that a client belongs to.

    Args:
        rank, world: number of the worker, and number of all workers, default 0 of 1.
        generation: generation of the group of workers, default 0. Shards that receive a newer one start again
            without rows, and no longer serve older ones.
        run: identity of the run, the same for all its workers, at most 64 characters; default: one generated
            by this process. A shard serves one run at a time, until all its clients are closed; it then keeps
            its rows for that run, and starts again without rows for any other. Name the run to return to its
            rows from another process.

    Raises:
        ConfigError: a rank that is not below `world`.
    """

    rank: int = 0
    world: int = 1
    generation: int = 0
    run: str = OWN_RUN

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            raise ConfigError(f"rank must be 0 to world - 1, got rank {self.rank}, world {self.world}")


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
        values: dict[str, Any] = {"mode": "hybrid", "generation": 0, "run": "", **data}
        world = whole(values, "world", 1, MAX_WORLD)
        rank = whole(values, "rank", 0, world - 1)
        if values["mode"] not in ("sync", "hybrid"):
            raise ConfigError(f"a hello has an unknown mode: {shortened(values['mode'])}")
        forward = values.get("forward")
        if not isinstance(forward, str) or forward not in CODES:
            raise ConfigError(f"a hello has an unknown wire format: {shortened(forward)}")
        gated = values["mode"] == "sync" and world > 1
        ordered = gated and values.get("ordered") is True
        generation = whole(values, "generation", 0, LARGEST)
        completed = whole(values, "completed", 0, LARGEST) if gated and "completed" in values else 0
        run = values["run"]
        if not isinstance(run, str) or len(run) > MAX_RUN:
            raise ConfigError(f"a hello has an invalid run: {shortened(run)}")
        return cls(WorkerId(rank, world, generation, run), CODES[forward], gated, ordered, completed)


def _admission(data: Mapping[str, Any]) -> Admission:
    least, most = whole(data, "min_count", 1, 255), whole(data, "memory", 64, LARGEST)
    if type(data["probability"]) not in (int, float):
        raise ConfigError(f"a hello has an invalid probability: {shortened(data['probability'])}")
    return Admission(least, data["probability"], most)


def _eviction(data: Mapping[str, Any]) -> Eviction:
    ttl = None if data["ttl"] is None else whole(data, "ttl", 1, 2**31 - 1)
    return Eviction(data["policy"], ttl)


def _tier(data: Mapping[str, Any]) -> Tier:
    if not isinstance(data["path"], str) or "\0" in data["path"]:
        raise ConfigError(f"a hello has an invalid tier folder: {shortened(data['path'])}")
    return Tier(data["path"], whole(data, "size", 1, LARGEST))


def store_to_dict(store: StoreConfig) -> dict[str, Any]:
    """Return the settings of a store, without its tables, as plain data."""
    plain = asdict(store)
    del plain["initial_scale"], plain["dtype"], plain["tables"]  # every table has its own values
    return plain


def tables_to_dicts(tables: Sequence[Table]) -> tuple[Mapping[str, Any], ...]:
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
        optimizer = table.optimizer.to_dict()
        settings = {k: list(v) if isinstance(v, tuple) else v for k, v in optimizer.items()}
        retention = {"admission": own_to_dict(table.admission), "eviction": own_to_dict(table.eviction)}
        plain.append(
            {f.name: getattr(table, f.name) for f in fields(table)} | {"optimizer": settings, **retention}
        )
    return tuple(plain)


def tables_from_dicts(plain: Sequence[Mapping[str, Any]]) -> list[Table]:
    """Return the tables from `tables_to_dicts` data."""
    tables = []
    for data in plain:
        arguments = {**data, "optimizer": from_dict(data["optimizer"])}
        name = arguments.pop("name")
        if not isinstance(name, str):
            raise ConfigError(f"a hello has an invalid table name: {shortened(name)}")
        for key, read in (("admission", _admission), ("eviction", _eviction)):
            if isinstance(arguments.get(key), dict):
                arguments[key] = read(arguments[key])
        if arguments.get("memory") is not None:
            whole(arguments, "memory", 1, LARGEST)
        tables.append(Table(name, **arguments))
    return tables
