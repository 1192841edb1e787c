"""What a client's hello tells a shard server about the tables, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from satrap.errors import ConfigError
from satrap.exchange.servers.sections import MAX_SECTIONS
from satrap.exchange.servers.shard_map import ShardMap
from satrap.exchange.servers.wire import CODES
from satrap.optim import Optimizer, from_dict
from satrap.rpc.wire.text import LARGEST, MAX_WORLD, shortened, whole
from satrap.schema import Table
from satrap.store import BUCKETS, Admission, Eviction, Shard, Tier

MAX_RUN = 64
"""Characters of a run's identity."""
_LARGEST_SEED = 1 << 128


@dataclass(frozen=True, slots=True)
class ShardConfig:
    """Everything the rows of one shard depend on; equal for all its clients.

    Args:
        tables: with an optimizer each, as `table_to_dict` writes them.
        seed: of the initial rows.
        memory: byte budget of this shard, None without.
        shard: index of this shard.
        map: which buckets it owns.
        admission, eviction, tier: of the store, None without; the tier's size is that of this shard.
    """

    tables: tuple[Mapping[str, Any], ...]
    seed: int
    memory: int | None
    shard: int
    map: ShardMap
    admission: Admission | None = None
    eviction: Eviction | None = None
    tier: Tier | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data that `from_dict` reads."""
        return {
            "tables": list(self.tables),
            "seed": self.seed,
            "memory": self.memory,
            "shard": self.shard,
            "shards": self.map.shards,
            "epoch": self.map.epoch,
            "admission": None if self.admission is None else self.admission.to_dict(),
            "eviction": None if self.eviction is None else self.eviction.to_dict(),
            "tier": None if self.tier is None else self.tier.to_dict(),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ShardConfig:
        """Build it from `to_dict` data.

        Raises:
            ConfigError: something is missing or impossible.
        """
        try:
            number = partial(whole, data)
            made = cls(
                tuple(table_to_dict(_table(t)) for t in data["tables"]),
                number("seed", -_LARGEST_SEED, _LARGEST_SEED),
                None if data["memory"] is None else number("memory", 1, LARGEST),
                number("shard", 0, BUCKETS),
                ShardMap(number("shards", 1, BUCKETS), epoch=number("epoch", 1, 2**32 - 1)),
                None if data["admission"] is None else _admission(data["admission"]),
                None if data["eviction"] is None else _eviction(data["eviction"]),
                None if data["tier"] is None else _tier(data["tier"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise ConfigError(f"a hello lacks or distorts {error}") from error
        if made.shard >= made.map.shards:
            raise ConfigError(f"there is no shard {made.shard} among {made.map.shards}")
        return made

    def difference(self, other: ShardConfig) -> str:
        """Return what differs, in words; empty if nothing does."""
        mine, theirs = self.to_dict(), other.to_dict()
        for key in ("shard", "shards", "epoch", "seed", "memory", "admission", "eviction", "tier"):
            if mine[key] != theirs[key]:
                return f"{key} {mine[key]} here, {theirs[key]} asked for"
        for here, asked in zip(self.tables, other.tables, strict=False):
            if here != asked:
                return f"table {here['name']!r}: {dict(here)} here, {dict(asked)} asked for"
        if len(self.tables) != len(other.tables):
            return f"{len(self.tables)} tables here, {len(other.tables)} asked for"
        return ""

    def open(self) -> Shard:
        """Make the store.

        Raises:
            ConfigError: more table groups than a message can carry.
        """
        store = Shard(
            [_table(t) for t in self.tables],
            seed=self.seed,
            memory=self.memory,
            admission=self.admission,
            eviction=self.eviction,
            tier=self.tier,
        )
        if (groups := len(store.groups)) > MAX_SECTIONS:
            store.close()
            raise ConfigError(
                f"the tables form {groups} groups, a message carries {MAX_SECTIONS}",
                why="tables are of one group only if their dim, optimizer and number format are equal",
                fix="use fewer different dims and optimizers",
            )
        return store


@dataclass(frozen=True, slots=True)
class Worker:
    """What a hello says of the worker that sends it.

    Args:
        forward: code of the number format of the rows it is sent.
        rank, world: which of how many it is.
        generation: of the group of workers it belongs to.
        run: identity of the run that it works for.
        gated: its requests wait until optimizer steps are complete (`sync` with several workers).
        ordered: its lookups of a step, too, wait for those of lower ranks.
    """

    forward: int
    rank: int
    world: int
    generation: int
    run: str
    gated: bool
    ordered: bool

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Worker:
        """Build it from a hello.

        Raises:
            ConfigError: something is missing or impossible.
        """
        known: dict[str, Any] = {"mode": "hybrid", "generation": 0, "run": "", **data}
        world = whole(known, "world", 1, MAX_WORLD)
        rank = whole(known, "rank", 0, world - 1)
        if known["mode"] not in ("sync", "hybrid"):
            raise ConfigError(f"a hello has an unknown mode: {shortened(known['mode'])}")
        forward = known.get("forward")
        if not isinstance(forward, str) or forward not in CODES:
            raise ConfigError(f"a hello has an unknown wire format: {shortened(forward)}")
        gated = known["mode"] == "sync" and world > 1
        ordered = gated and known.get("ordered") is True
        generation = whole(known, "generation", 0, LARGEST)
        run = known["run"]
        if not isinstance(run, str) or len(run) > MAX_RUN:
            raise ConfigError(f"a hello has an impossible run: {shortened(run)}")
        return cls(CODES[forward], rank, world, generation, run, gated, ordered)


def _admission(data: Mapping[str, Any]) -> Admission:
    least, most = whole(data, "min_count", 1, 255), whole(data, "memory", 64, LARGEST)
    if type(data["probability"]) not in (int, float):
        raise ConfigError(f"a hello has an impossible probability: {shortened(data['probability'])}")
    return Admission(least, data["probability"], most)


def _eviction(data: Mapping[str, Any]) -> Eviction:
    ttl = None if data["ttl"] is None else whole(data, "ttl", 1, 2**31 - 1)
    return Eviction(data["policy"], ttl)


def _tier(data: Mapping[str, Any]) -> Tier:
    if not isinstance(data["path"], str) or "\0" in data["path"]:
        raise ConfigError(f"a hello has an impossible folder of a tier: {shortened(data['path'])}")
    return Tier(data["path"], whole(data, "size", 1, LARGEST))


def table_to_dict(table: Table, default: Optimizer | None = None) -> dict[str, Any]:
    """Return a table as plain data.

    Raises:
        ConfigError: neither the table nor the default has an optimizer.
    """
    optimizer = table.optimizer or default
    if optimizer is None:
        raise ConfigError(
            f"table {table.name!r} has no optimizer", fix="give the table or the exchange one of satrap.optim"
        )
    settings = {k: list(v) if isinstance(v, tuple) else v for k, v in optimizer.to_dict().items()}
    plain = {f.name: getattr(table, f.name) for f in fields(table)}
    return {**plain, "optimizer": settings}


def tables_to_dicts(tables: Sequence[Table], default: Optimizer | None) -> tuple[Mapping[str, Any], ...]:
    """Return tables as plain data, see `table_to_dict`."""
    return tuple(table_to_dict(table, default) for table in tables)


def tables_from_dicts(plain: Sequence[Mapping[str, Any]]) -> list[Table]:
    """Return the tables that `tables_to_dicts` wrote."""
    return [_table(data) for data in plain]


def _table(data: Mapping[str, Any]) -> Table:
    arguments = {**data, "optimizer": from_dict(data["optimizer"])}
    name = arguments.pop("name")
    if not isinstance(name, str):
        raise ConfigError(f"a hello has an impossible name of a table: {shortened(name)}")
    return Table(name, **arguments)
