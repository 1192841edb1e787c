"""Divides tables into groups, and the store's memory and tier among the groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

from satrap.errors import ConfigError, StoreError
from satrap.optim import Optimizer
from satrap.retention import Admission, Eviction
from satrap.runtime.machine_limits import address_bytes
from satrap.schema import Table
from satrap.store.memory.directory import OVERHEAD
from satrap.store.row_spec import plan
from satrap.store.tier import Tier

LEFT_PARTS = 3
"""Without a budget, a store reserves one in this many parts of a limited address space. `clear` reserves
another part before it returns the first; the remainder is for batches and threads."""
LEAST_LEFT = 256 << 20
"""Fewest bytes of address space for a store without a budget."""


class GroupKind(NamedTuple):
    """The settings that the tables of a group have in common.

    Attributes:
        dim, dtype, optimizer, frozen: of each table.
        admission: which new ids get a row; None: all.
        eviction: which rows are evicted; None: none.
        memory: the group's own budget in bytes; None: it shares the store's budget.
        alone: the only table, if the group has its own budget; else empty.
    """

    dim: int
    dtype: str
    optimizer: Optimizer
    frozen: bool
    admission: Admission | None
    eviction: Eviction | None
    memory: int | None
    alone: str


Members = Mapping[GroupKind, Sequence[Table]]


class GroupSpec(NamedTuple):
    """A group to create, with its budget in bytes and its part of the tier (None: neither)."""

    kind: GroupKind
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
) -> list[GroupSpec]:
    """Return the groups of a store, by first appearance of a table; arguments and errors as for `Shard`."""
    members: dict[GroupKind, list[Table]] = {}
    names: set[str] = set()
    for table in tables:
        if table.name in names:
            raise ConfigError(f"two tables are named {table.name!r}")
        names.add(table.name)
        members.setdefault(_kind(table, optimizer, admission, eviction), []).append(table)
    for kind, group in members.items():
        if kind.eviction is not None:
            kind.eviction.check(kind.memory or memory, f"tables {_names(group)}")
    if tier is not None:
        _check_tier(tier, memory, members)
    sizes = _sizes(memory, members)
    budgets = [None if size is None else size // 1 for size in sizes]
    parts = [None] * len(sizes) if tier is None else _parts(tier, members, sizes)
    groups = zip(members.items(), budgets, parts, strict=True)
    return [GroupSpec(kind, group, budget, part) for (kind, group), budget, part in groups]


def _kind(
    table: Table, default: Optimizer | None, admission: Admission | None, eviction: Eviction | None
) -> GroupKind:
    chosen = table.optimizer or default
    if chosen is None:
        raise ConfigError(
            f"table {table.name!r} has no optimizer",
            fix="give the table or the store an optimizer of satrap.optim",
        )
    alone = "" if table.memory is None else table.name
    gate, policy = table.admission_or(admission), table.eviction_or(eviction)
    return GroupKind(table.dim, table.dtype, chosen, table.frozen, gate, policy, table.memory, alone)


def _names(tables: Sequence[Table]) -> str:
    return ", ".join(table.name for table in tables)


def _sizes(memory: int | None, members: Members) -> list[Fraction | None]:
    """Return the bytes of each group: its own budget, or a share of the rest by tables and bytes per row."""
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

    def size(kind: GroupKind) -> Fraction | None:
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
        more = "more than" if own > memory else "all of"
        raise ConfigError(
            f"the tables' own budgets take {own} bytes, {more} the store's {memory} bytes",
            where=f"tables {_names(having)}" + (f"; without a budget: {_names(without)}" if without else ""),
            why="the tables' own budgets are taken from the store's memory",
            fix="give the store more memory, or these tables less",
        )


def _address_space(own: int) -> int | None:
    """Return the budget of the tables without one, given the others' bytes `own`; None: no limit."""
    available = address_bytes()
    if available is None:
        return None
    available -= own
    if available < LEAST_LEFT:
        raise StoreError(
            f"the limits of this process leave {available} bytes of address space",
            why=f"rows and batches need at least {LEAST_LEFT} bytes",
            fix="raise the limit (ulimit -v), or set embedding.memory",
        )
    return available // LEFT_PARTS


def _check_tier(tier: Tier, memory: int | None, members: Members) -> None:
    """Raise `ConfigError` if no group can use the tier, or a group that evicts cannot."""
    users = {kind for kind in members if kind.eviction is not None}
    for kind in users:
        tier.check(kind.memory or memory, kind.eviction)
    if not users:
        tier.check(memory, None)


def _parts(tier: Tier, members: Members, sizes: Sequence[Fraction | None]) -> list[Tier | None]:
    """Return each group's part of the tier, in proportion to memory; None for groups that do not evict."""
    shares = [size if kind.eviction is not None else None for kind, size in zip(members, sizes, strict=True)]
    whole = sum(share for share in shares if share is not None)
    return [None if share is None else tier.part(share, whole) for share in shares]
