"""Which tables form a group, and what each group gets of the store's memory and tier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

from satrap.errors import ConfigError, StoreError
from satrap.optim import Optimizer
from satrap.retention import Admission, Eviction
from satrap.schema import Table
from satrap.store.directory import OVERHEAD
from satrap.store.limits import address_bytes
from satrap.store.steps import plan
from satrap.store.tier import Tier

LEFT_PARTS = 3
"""Without a budget, a store reserves one in this many parts of a limited address space. `clear` reserves
another part before it returns the first; the rest is for batches and threads."""
LEAST_LEFT = 256 << 20
"""Bytes of address space below which a store without a budget is refused."""


class Kind(NamedTuple):
    """What the tables of a group have in common.

    Attributes:
        dim, dtype, optimizer, frozen: of each table.
        admission: which new ids get a row; None: all.
        eviction: which rows are evicted; None: none.
        memory: the group's own budget in bytes; None: it shares that of the store.
        alone: the only table, if the group has a budget of its own; else empty.
    """

    dim: int
    dtype: str
    optimizer: Optimizer
    frozen: bool
    admission: Admission | None
    eviction: Eviction | None
    memory: int | None
    alone: str


Members = Mapping[Kind, Sequence[Table]]


class Share(NamedTuple):
    """A group that is to be made, with its budget in bytes and its part of the tier; None: none."""

    kind: Kind
    tables: Sequence[Table]
    memory: int | None
    tier: Tier | None


def shares(
    tables: Sequence[Table],
    *,
    optimizer: Optimizer | None = None,
    memory: int | None = None,
    admission: Admission | None = None,
    eviction: Eviction | None = None,
    tier: Tier | None = None,
) -> list[Share]:
    """Return the groups of a store, by first appearance of a table; arguments and errors as of `Shard`."""
    members: dict[Kind, list[Table]] = {}
    names: set[str] = set()
    for table in tables:
        if table.name in names:
            raise ConfigError(f"two tables have the name {table.name!r}")
        names.add(table.name)
        members.setdefault(_kind(table, optimizer, admission, eviction), []).append(table)
    for kind, own in members.items():
        if kind.eviction is not None:
            kind.eviction.check(kind.memory or memory, f"tables {_names(own)}")
    if tier is not None:
        _check_tier(tier, memory, members)
    sizes = _sizes(memory, members)
    budgets = [None if size is None else size // 1 for size in sizes]
    parts = [None] * len(sizes) if tier is None else _parts(tier, members, sizes)
    of = zip(members.items(), budgets, parts, strict=True)
    return [Share(kind, own, budget, part) for (kind, own), budget, part in of]


def _kind(
    table: Table, default: Optimizer | None, admission: Admission | None, eviction: Eviction | None
) -> Kind:
    chosen = table.optimizer or default
    if chosen is None:
        raise ConfigError(
            f"table {table.name!r} has no optimizer", fix="give the table or the store one of satrap.optim"
        )
    alone = "" if table.memory is None else table.name
    gate, policy = table.admission_or(admission), table.eviction_or(eviction)
    return Kind(table.dim, table.dtype, chosen, table.frozen, gate, policy, table.memory, alone)


def _names(tables: Sequence[Table]) -> str:
    return ", ".join(table.name for table in tables)


def _sizes(memory: int | None, members: Members) -> list[Fraction | None]:
    """Return the bytes of each group: its own; of the rest in proportion to its tables and bytes per row."""
    weights = {
        kind: len(tables) * (plan(kind.optimizer, kind.dim, kind.dtype).row_bytes + OVERHEAD)
        for kind, tables in members.items()
        if kind.memory is None
    }
    own = sum(kind.memory or 0 for kind in members)
    whole = sum(weights.values())
    if memory is not None:
        _check_rest(memory, own, members)
        rest: int | None = memory - own
    else:
        rest = _address_space(own) if weights else None

    def size(kind: Kind) -> Fraction | None:
        if kind.memory is not None:
            return Fraction(kind.memory)
        return None if rest is None else Fraction(rest * weights[kind], whole)

    return [size(kind) for kind in members]


def _check_rest(memory: int, own: int, members: Members) -> None:
    if memory <= 0:
        raise ConfigError(f"memory must be > 0 bytes, got {memory}")
    without = [table for kind, tables in members.items() if kind.memory is None for table in tables]
    if own > memory or (own == memory and without):
        having = [table for kind, tables in members.items() if kind.memory is not None for table in tables]
        more = f"{own} bytes are more than" if own > memory else "nothing is left of"
        raise ConfigError(
            f"tables with a budget of their own: {more} the {memory} bytes of all tables",
            where=f"tables {_names(having)}" + (f"; without: {_names(without)}" if without else ""),
            why="their budgets are parts of the memory of all tables",
            fix="give the store more memory, or these tables less",
        )


def _address_space(own: int) -> int | None:
    """Return the budget of tables without any, beside those with `own` bytes; None: there is no limit."""
    left = address_bytes()
    if left is None:
        return None
    left -= own
    if left < LEAST_LEFT:
        raise StoreError(
            f"the limits on this process leave {left} bytes of address space",
            why="the rows need some, and so does every batch",
            fix="raise the limit (ulimit -v); embedding.memory says how much of it rows may have",
        )
    return left // LEFT_PARTS


def _check_tier(tier: Tier, memory: int | None, members: Members) -> None:
    """Raise `ConfigError` if no rows go to the tier, or some must not."""
    users = {kind for kind in members if kind.eviction is not None}
    for kind in users:
        tier.check(kind.memory or memory, kind.eviction)
    if not users:
        tier.check(memory, None)


def _parts(tier: Tier, members: Members, sizes: Sequence[Fraction | None]) -> list[Tier | None]:
    """Return the parts of the tier, in proportion to memory; groups that evict nothing have none."""
    shares = [size if kind.eviction is not None else None for kind, size in zip(members, sizes, strict=True)]
    whole = sum(share for share in shares if share is not None)
    return [None if share is None else tier.part(share, whole) for share in shares]
