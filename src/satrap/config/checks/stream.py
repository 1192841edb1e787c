"""Checks recipes that train on a log of events, whose rows come once and in order."""

from satrap.config.keys.data import LogKeys, StreamKeys
from satrap.config.keys.sections import Sections, TuneKeys
from satrap.config.source import KeyPath, RecipeSource, dotted, refuse_beside
from satrap.errors import ConfigError

LOGS = ("folder", "redis", "kafka")
"""Keys of data.stream that name a log."""


def in_order(sections: Sections) -> Sections:
    """Return the sections, with `data.shuffle` false by default if `data.stream` is set."""
    if sections.data.stream is None or "shuffle" in sections.data.model_fields_set:
        return sections
    return sections.model_copy(update={"data": sections.data.model_copy(update={"shuffle": False})})


def check_stream(sections: Sections, source: RecipeSource) -> None:
    """Raise `ConfigError` unless training rows come from files, or from one log that other keys support."""
    data, training = sections.data, sections.training
    if data.stream is None:
        if data.train is None:
            raise ConfigError(
                "the recipe has no training rows",
                where=source.where(("data",)),
                fix="give data.train, a file, glob or URL; or data.stream, a log of events",
            )
        if training.follow:
            raise ConfigError(
                "training.follow needs data.stream",
                where=source.where(("training", "follow")),
                why="files are read to their end; only a log of events can grow",
                fix="name a log of events in data.stream, or remove training.follow",
            )
        return
    _check_log(data.stream, ("data", "stream"), source)
    _check_labels(data.stream, source)
    mesh = sections.dense.mesh
    once, order = "events are read only once", "events are read in the order of the log"
    together = "workers of one copy must read the same batches, but batches of a log depend on arrival times"
    conflicts = (
        (("data", "train"), data.train is not None, "a run reads either files or a log"),
        (("training", "epochs"), training.epochs > 1, once),
        (("data", "shuffle"), data.shuffle, order),
        (("data", "buffer_rows"), data.buffer_rows is not None, order),
        (("data", "balance"), data.balance is not None, order),
        (
            ("data", "split"),
            data.split is not None,
            "each batch of a log is scored first and then trained on",
        ),
        (("data", "join"), bool(data.join), "only rows of files can be joined"),
        (("tune",), sections.tune != TuneKeys(), "satrap tune reads the rows several times"),
        (("cluster", "loaders"), sections.cluster.loaders > 0, "each worker reads its own partitions"),
        (("dense", "mesh"), mesh.tensor * mesh.pipeline > 1, together),
    )
    refuse_beside("data.stream", conflicts, source, fix="remove one of the two keys")


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


def _check_labels(stream: StreamKeys, source: RecipeSource) -> None:
    """Raise `ConfigError` if only some of the keys for late labels are given."""
    needed = ("labels", "label_window", "id", "time")
    present = [key for key in needed if getattr(stream, key) is not None]
    if not set(present) - {"time"}:
        return
    if missing := [key for key in needed if key not in present]:
        raise ConfigError(
            f"data.stream.{present[0]} needs data.stream.{missing[0]}",
            where=source.where(("data", "stream", present[0])),
            why="late labels are matched to events by id, and label_window is measured by time",
            fix=f"give {', '.join(needed)}, or only time",
        )
    assert stream.labels is not None
    _check_log(stream.labels, ("data", "stream", "labels"), source)
