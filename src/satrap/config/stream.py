"""Checks a recipe that trains on a log of events: what makes no sense for rows that come once, in order."""

from satrap.config.data import LogKeys, StreamKeys
from satrap.config.keys import Sections, Tune
from satrap.config.source import KeyPath, Source, dotted, refuse_beside
from satrap.errors import ConfigError

LOGS = ("folder", "redis", "kafka")
"""Keys of data.stream that name a log."""


def in_order(sections: Sections) -> Sections:
    """Return the sections, with a log of events read in its order unless they say otherwise."""
    if sections.data.stream is None or "shuffle" in sections.data.model_fields_set:
        return sections
    return sections.model_copy(update={"data": sections.data.model_copy(update={"shuffle": False})})


def check_stream(sections: Sections, source: Source) -> None:
    """Raise `ConfigError` unless the training rows are of files, or of one log that goes with other keys."""
    data, training = sections.data, sections.training
    if data.stream is None:
        if data.train is None:
            raise ConfigError(
                "the recipe names no training rows",
                where=source.where(("data",)),
                fix="give data.train, a file, glob or URL; or data.stream, a log of events",
            )
        if training.follow:
            raise ConfigError(
                "training.follow needs data.stream",
                where=source.where(("training", "follow")),
                why="files are read to their end, and no more rows come",
                fix="name a log of events in data.stream, or remove training.follow",
            )
        return
    _check_log(data.stream, ("data", "stream"), source)
    _check_labels(data.stream, source)
    mesh = sections.dense.mesh
    once, order = "events come once", "events are read in the order of the log"
    together = "the workers of a share must read the same batches, and batches depend on when events come"
    found = (
        (("data", "train"), data.train is not None, "a run reads files or a log"),
        (("training", "epochs"), training.epochs > 1, once),
        (("data", "shuffle"), data.shuffle, order),
        (("data", "buffer_rows"), data.buffer_rows is not None, order),
        (("data", "balance"), data.balance is not None, order),
        (("data", "split"), data.split is not None, "what is read is trained on, after it was scored"),
        (("data", "join"), bool(data.join), "joins are of files"),
        (("tune",), sections.tune != Tune(), "a search reads the rows several times"),
        (("cluster", "loaders"), sections.cluster.loaders > 0, "each worker reads its own partitions"),
        (("dense", "mesh"), mesh.tensor * mesh.pipeline > 1, together),
    )
    refuse_beside("data.stream", found, source, fix="remove one of the two keys")


def _check_log(keys: LogKeys, path: KeyPath, source: Source) -> None:
    """Raise `ConfigError` unless one log is named."""
    named = [log for log in LOGS if getattr(keys, log) is not None]
    if len(named) != 1:
        raise ConfigError(
            f"{dotted(path)} names {len(named) or 'no'} logs",
            where=source.where(path),
            why="events, and labels, are read from one log",
            fix=f"give one of {', '.join(LOGS)}",
        )


def _check_labels(stream: StreamKeys, source: Source) -> None:
    """Raise `ConfigError` if labels are to come later, and not all is said that this needs."""
    needed = ("labels", "label_window", "id", "time")
    given = [key for key in needed if getattr(stream, key) is not None]
    if not set(given) - {"time"}:
        return
    if missing := [key for key in needed if key not in given]:
        raise ConfigError(
            f"data.stream.{given[0]} needs data.stream.{missing[0]}",
            where=source.where(("data", "stream", given[0])),
            why="labels that come later belong to events by id, and are waited for by time",
            fix=f"give {', '.join(needed)}, or only time",
        )
    assert stream.labels is not None
    _check_log(stream.labels, ("data", "stream", "labels"), source)
