"""What a client's hello tells a shard server about the tables, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from satrap.errors import ConfigError
from satrap.exchange.servers.shard_map import ShardMap
from satrap.optim import Optimizer, from_dict
from satrap.schema import Table
from satrap.store import Admission, Eviction, Shard, Tier


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
            made = cls(
                tuple(table_to_dict(_table(t)) for t in data["tables"]),
                int(data["seed"]),
                None if data["memory"] is None else int(data["memory"]),
                int(data["shard"]),
                ShardMap(int(data["shards"]), epoch=int(data["epoch"])),
                None if data["admission"] is None else Admission(**data["admission"]),
                None if data["eviction"] is None else Eviction(**data["eviction"]),
                None if data["tier"] is None else Tier(str(data["tier"]["path"]), int(data["tier"]["size"])),
            )
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise ConfigError(f"a hello lacks or distorts {error}") from error
        if not 0 <= made.shard < made.map.shards:
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
        """Make the store."""
        return Shard(
            [_table(t) for t in self.tables],
            seed=self.seed,
            memory=self.memory,
            admission=self.admission,
            eviction=self.eviction,
            tier=self.tier,
        )


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
    return Table(str(arguments.pop("name")), **arguments)
