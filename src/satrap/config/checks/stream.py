"""Checks the log of recipes that train on a log of events, whose rows come once and in order."""

from satrap.config.keys.data import LogKeys
from satrap.config.keys.sections import Sections
from satrap.config.source import KeyPath, RecipeSource, dotted
from satrap.errors import ConfigError

LOGS = ("folder", "redis", "kafka")
"""Keys of data.stream that name a log."""


def in_order(sections: Sections) -> Sections:
    """Return the sections, with `data.shuffle` false by default if `data.stream` is set."""
    if sections.data.stream is None or "shuffle" in sections.data.model_fields_set:
        return sections
    return sections.model_copy(update={"data": sections.data.model_copy(update={"shuffle": False})})


def check_stream(sections: Sections, source: RecipeSource) -> None:
    """Raise `ConfigError` unless training rows come from files, or from one log."""
    data = sections.data
    if data.stream is None:
        if data.train is None:
            raise ConfigError(
                "the recipe has no training rows",
                where=source.where(("data",)),
                fix="give data.train, a file, glob or URL; or data.stream, a log of events",
            )
        return
    _check_log(data.stream, ("data", "stream"), source)
    if data.stream.labels is not None:
        _check_log(data.stream.labels, ("data", "stream", "labels"), source)


def _check_log(keys: LogKeys, path: KeyPath, source: RecipeSource) -> None:
    """Raise `ConfigError` unless exactly one log is named."""
    named = [log for log in LOGS if getattr(keys, log) is not None]
    if len(named) != 1:
        raise ConfigError(
            f"{dotted(path)} names {len(named) or 'no'} logs",
            where=source.where(path),
            why="events are read from one log, and labels from one log",
            fix=f"give one of {', '.join(LOGS)}",
        )
