"""What a recipe says about single tables, and how it goes together with what it says about all."""

from collections.abc import Iterator
from typing import NamedTuple

from satrap.config.keys import Admission, CategoricalKeys, Eviction, OwnTable, Sections
from satrap.config.source import KeyPath, Source, dotted
from satrap.errors import ConfigError


class Kept(NamedTuple):
    """What decides which rows of a table are kept.

    Attributes:
        memory: its own budget in bytes; None: it shares that of all tables.
        eviction, eviction_key: which rows leave memory, None: none; the key that says so.
        admission_key: the key by which some new ids get no row; None: all get one.
    """

    memory: int | None
    eviction: Eviction | None
    eviction_key: KeyPath
    admission_key: KeyPath | None

    @property
    def decided_by(self) -> list[KeyPath]:
        """The keys by which it does not keep every row."""
        evicts = [] if self.eviction is None else [self.eviction_key]
        return evicts if self.admission_key is None else [*evicts, self.admission_key]


def kept(sections: Sections) -> dict[str, Kept]:
    """Return this for each table, in order of first use."""
    found = {}
    for feature, keys in sections.features.items():
        if isinstance(keys, CategoricalKeys):
            name = getattr(keys, "table", None) or feature
            found[name] = _kept(name, sections.tables.get(name, OwnTable()), sections)
    return found


def _kept(name: str, own: OwnTable, sections: Sections) -> Kept:
    embedding, given = sections.embedding, own.model_fields_set
    keys: dict[str, KeyPath] = {
        key: ("tables", name, key) if key in given else ("embedding", key)
        for key in ("eviction", "admission")
    }
    eviction = own.eviction if "eviction" in given else embedding.eviction
    admission = (own.admission or Admission()) if "admission" in given else embedding.admission
    chosen = not own.frozen and (admission.min_count > 1 or admission.probability < 1)
    return Kept(own.memory, eviction, keys["eviction"], keys["admission"] if chosen else None)


def memory_of(sections: Sections) -> int | None:
    """Return the most bytes of all tables together; None: there is no limit."""
    own = [table.memory for table in kept(sections).values()]
    whole = sections.embedding.memory
    return whole if whole is not None or None in own else sum(memory or 0 for memory in own)


def check_table(name: str, sections: Sections, source: Source) -> None:
    """Raise `ConfigError` for settings of a table that do not go together."""
    own = sections.tables[name]
    if not own.frozen:
        return
    for key in ("optimizer", "initial_scale", "admission"):
        if getattr(own, key) is not None:
            raise ConfigError(
                f"tables.{name}.{key} does not go with frozen: true",
                where=source.where(("tables", name, key)),
                why="rows of a frozen table never change, and no others are created",
                fix="remove one of the two keys",
            )
    if own.rows is None:
        raise ConfigError(
            f"tables.{name} is frozen, and has no rows",
            where=source.where(("tables", name, "frozen")),
            why="every id would read zeros",
            fix="name the file of its rows, for example rows: vectors.parquet",
        )


def check_kept(sections: Sections, source: Source) -> None:
    """Raise `ConfigError` for budgets, eviction and a tier that do not go together."""
    tables, whole = kept(sections), sections.embedding.memory
    for path, eviction in _evictions(sections):
        if eviction is not None and (eviction.policy == "ttl") != (eviction.ttl is not None):
            raise ConfigError(
                f"{dotted(path)}: policy {eviction.policy} {'has no' if eviction.ttl else 'needs'} ttl",
                where=source.where(path),
                fix="write eviction: {policy: ttl, ttl: STEPS}",
            )
    for name, table in tables.items():
        eviction, path, memory = table.eviction, table.eviction_key, table.memory or whole
        if eviction is not None and eviction.ttl is None and memory is None:
            key = "embedding.memory" if path[0] == "embedding" else f"tables.{name}.memory"
            raise ConfigError(
                f"{dotted(path)} with policy {eviction.policy} needs {key}",
                where=source.where(path),
                why="rows are evicted when a budget is used up, and there is none",
                fix=f"set {key}, for example 4GiB, or remove the key",
            )
    _check_memory(tables, whole, source)
    if sections.embedding.tier is not None:
        _check_tier(tables, whole, source)


def _evictions(sections: Sections) -> Iterator[tuple[KeyPath, Eviction | None]]:
    yield ("embedding", "eviction"), sections.embedding.eviction
    yield from ((("tables", name, "eviction"), own.eviction) for name, own in sections.tables.items())


def _check_memory(tables: dict[str, Kept], whole: int | None, source: Source) -> None:
    own = {name: table.memory for name, table in tables.items() if table.memory is not None}
    if not own or whole is None or sum(own.values()) < whole + (len(own) == len(tables)):
        return
    more = "more than" if sum(own.values()) > whole else "all of"
    raise ConfigError(
        f"{' + '.join(f'tables.{name}.memory' for name in own)} is {sum(own.values())} bytes: {more} "
        f"embedding.memory, {whole}",
        where=source.where(("tables", next(iter(own)), "memory")),
        why="they are parts of it, and the other tables share the rest",
        fix="give the tables less, or set embedding.memory to more",
    )


def _check_tier(tables: dict[str, Kept], whole: int | None, source: Source) -> None:
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
            why="a tier keeps the rows that leave memory when a budget is used up",
            fix="set embedding.memory, for example 4GiB, and eviction: {policy: lru}",
        )
