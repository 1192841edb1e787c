"""Settings of single tables, checked against the settings of all tables."""

from typing import NamedTuple

from satrap.config.keys.sections import Sections
from satrap.config.source import KeyPath, RecipeSource, dotted
from satrap.errors import ConfigError
from satrap.retention import Eviction
from satrap.schema import Categorical
from satrap.settings.store import TableSettings


class RetentionKeys(NamedTuple):
    """Settings that decide which rows of a table are kept.

    Attributes:
        memory: the table's own budget in bytes; None: it shares the budget of all tables.
        eviction, eviction_key: the rows that leave memory (None: none), and the key with this setting.
        admission_key: the key that denies some new ids a row; None: every new id gets a row.
    """

    memory: int | None
    eviction: Eviction | None
    eviction_key: KeyPath
    admission_key: KeyPath | None

    @property
    def decided_by(self) -> list[KeyPath]:
        """The keys that make the table drop or deny rows."""
        evicts = [] if self.eviction is None else [self.eviction_key]
        return evicts if self.admission_key is None else [*evicts, self.admission_key]


def kept(sections: Sections) -> dict[str, RetentionKeys]:
    """Return `RetentionKeys` by table, in order of first use."""
    tables = {}
    for feature, keys in sections.features.items():
        if isinstance(keys, Categorical):
            name = keys.table or feature
            tables[name] = _kept(name, sections.tables.get(name, TableSettings()), sections)
    return tables


def _kept(name: str, table: TableSettings, sections: Sections) -> RetentionKeys:
    embedding = sections.embedding
    keys: dict[str, KeyPath] = {
        key: ("embedding", key) if getattr(table, key) == "store" else ("tables", name, key)
        for key in ("eviction", "admission")
    }
    eviction = embedding.eviction if table.eviction == "store" else table.eviction
    admission = embedding.admission if table.admission == "store" else table.admission
    chosen = not table.frozen and admission is not None and not admission.open
    return RetentionKeys(table.memory, eviction, keys["eviction"], keys["admission"] if chosen else None)


def memory_of(sections: Sections) -> int | None:
    """Return the memory limit of all tables together, in bytes; None: no limit."""
    budgets = [table.memory for table in kept(sections).values()]
    whole = sections.embedding.memory
    return whole if whole is not None or None in budgets else sum(memory or 0 for memory in budgets)


def check_table(name: str, sections: Sections, source: RecipeSource) -> None:
    """Raise `ConfigError` for a frozen table without rows."""
    table = sections.tables[name]
    if table.frozen and table.rows is None:
        raise ConfigError(
            f"tables.{name} is frozen, but has no file of rows",
            where=source.where(("tables", name, "frozen")),
            why="every id of this table would read zeros",
            fix="name the file of its rows, for example rows: vectors.parquet",
        )


def check_kept(sections: Sections, source: RecipeSource) -> None:
    """Raise `ConfigError` for conflicting budgets, evictions and tier."""
    tables, whole = kept(sections), sections.embedding.memory
    for name, table in tables.items():
        eviction, path, memory = table.eviction, table.eviction_key, table.memory or whole
        if eviction is not None and eviction.ttl is None and memory is None:
            key = "embedding.memory" if path[0] == "embedding" else f"tables.{name}.memory"
            raise ConfigError(
                f"{dotted(path)} with policy {eviction.policy} needs {key}",
                where=source.where(path),
                why="rows are evicted when a memory budget is full, but no budget is set",
                fix=f"set {key}, for example 4GiB, or remove {dotted(path)}",
            )
    _check_memory(tables, whole, source)
    if sections.embedding.tier is not None:
        _check_tier(tables, whole, source)


def _check_memory(tables: dict[str, RetentionKeys], whole: int | None, source: RecipeSource) -> None:
    budgets = {name: table.memory for name, table in tables.items() if table.memory is not None}
    if not budgets or whole is None or sum(budgets.values()) < whole + (len(budgets) == len(tables)):
        return
    more = "more than" if sum(budgets.values()) > whole else "all of"
    raise ConfigError(
        f"{' + '.join(f'tables.{name}.memory' for name in budgets)} is {sum(budgets.values())} bytes: {more} "
        f"embedding.memory, {whole}",
        where=source.where(("tables", next(iter(budgets)), "memory")),
        why="tables with their own memory take it from embedding.memory, and the other tables share the rest",
        fix="give the tables less, or set embedding.memory to more",
    )


def _check_tier(tables: dict[str, RetentionKeys], whole: int | None, source: RecipeSource) -> None:
    using = {name: table for name, table in tables.items() if table.eviction is not None}
    for name, table in using.items():
        assert table.eviction is not None
        if table.eviction.ttl is not None or (table.memory or whole) is None:
            what = f"table {name} has {dotted(table.eviction_key)}: {table.eviction.policy}"
            break
    else:
        what = "" if using else "no table evicts rows"
    if what:
        raise ConfigError(
            f"embedding.tier needs embedding.memory and an eviction policy of lru or lfu: {what}",
            where=source.where(("embedding", "tier")),
            why="a tier keeps the rows that are evicted when a memory budget is full",
            fix="set embedding.memory, for example 4GiB, and eviction: {policy: lru}",
        )
