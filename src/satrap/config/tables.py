"""Checks of what a recipe says about single tables."""

from satrap.config.keys import Sections
from satrap.config.source import Source
from satrap.errors import ConfigError


def check_table(name: str, sections: Sections, source: Source) -> None:
    """Raise `ConfigError` for settings of a table that do not go together."""
    own = sections.tables[name]
    if not own.frozen:
        return
    for key in ("optimizer", "initial_scale"):
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
