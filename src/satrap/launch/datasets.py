"""Opens the data sets of a recipe."""

import hashlib
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from satrap import data
from satrap.config import Recipe, load
from satrap.config.keys.data import LogKeys, SplitKeys, TimeSplitKeys
from satrap.data.encode.statistics import measured_as
from satrap.data.encode.transforms import is_measured
from satrap.data.formats.files import guess_format
from satrap.data.remote.server import LoaderService
from satrap.data.streams import EventStream, FolderLog, KafkaLog, LabelledLog, Log, RedisLog, read_stream
from satrap.errors import ConfigError
from satrap.schema import Schema

PARTS = ("train", "validation", "test")
CSV_KEYS = tuple(field.name for field in fields(data.CsvOptions))
"""Keys of `data` for the format of CSV files."""

FIRST_EVENTS = 100_000
"""Number of first events of a stream that determine the statistics of numeric features."""


def open_part(
    recipe: Recipe, schema: Schema, part: str, *, worker: int = 0, workers: int = 1
) -> data.Dataset | None:
    """Return a worker's share of the rows of one of the `PARTS`; None if the recipe does not have this part.

    For a stream, "train" is the first `FIRST_EVENTS` events; `open_stream` returns all events.
    """
    keys = recipe.sections.data
    if part == "train" and (stream := open_stream(recipe, schema)) is not None:
        return stream.head(FIRST_EVENTS)
    sources, rows = getattr(keys, part), None
    if keys.split is not None and (part == "train" or sources is None):
        rows = _rows_of(recipe, keys.split, part)
        sources = keys.train if rows is not None else sources
    if sources is None:
        return None
    located = [recipe.locate(source) for source in sources]
    shuffle = part == "train" and keys.shuffle
    rows_of_part = _read(recipe, schema, located, format=keys.format, rows=rows, shuffle=shuffle)
    return rows_of_part.with_options(worker=worker, workers=workers, training=part == "train")


def open_stream(recipe: Recipe, schema: Schema, *, worker: int = 0, workers: int = 1) -> EventStream | None:
    """Return a worker's share of the log of events to train on; None without `data.stream`."""
    sections, keys = recipe.sections, recipe.sections.data.stream
    if keys is None:
        return None
    log = _log(recipe, keys)
    if keys.labels is not None:
        log = recipe.located(
            ("data", "stream"),
            LabelledLog,
            events=log,
            labels=_log(recipe, keys.labels),
            id=keys.id,
            time=keys.time,
            window=keys.label_window,
            schema=schema,
        )
    stream = recipe.located(
        ("data", "stream"),
        read_stream,
        log,
        schema,
        batch_size=sections.batch_size,
        wait=keys.wait,
        follow=sections.training.follow,
        time=keys.time,
        missing=_csv_options(recipe).missing,
        bad_events=keys.bad_events,
    )
    return stream.with_options(worker=worker, workers=workers)


def _log(recipe: Recipe, keys: LogKeys) -> Log:
    if keys.redis is not None:
        return RedisLog(keys.redis.url, tuple(keys.redis.streams))
    if keys.kafka is not None:
        return KafkaLog(keys.kafka.brokers, keys.kafka.topic, keys.kafka.options)
    return FolderLog(recipe.locate(str(keys.folder)), recipe.sections.data.format, _csv_options(recipe))


def _csv_options(recipe: Recipe) -> data.CsvOptions:
    options: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name in CSV_KEYS
        if (value := getattr(recipe.sections.data, name)) is not None
    }
    return recipe.located(("data",), data.CsvOptions, **options)


def _rows_of(
    recipe: Recipe, split: SplitKeys | TimeSplitKeys, part: str
) -> data.RowSplit | data.TimeRange | None:
    """Return the selection of a part's rows in `data.train`; None if the part has no rows there."""
    if isinstance(split, SplitKeys):
        held = [*split.validation, *split.test]
        numbers = {
            "train": [i for i in range(split.modulo) if i not in held],
            "validation": split.validation,
            "test": split.test,
        }[part]
        return data.RowSplit(modulo=split.modulo, keep=tuple(numbers)) if numbers else None
    starts = {"train": None, "validation": split.validation, "test": split.test}
    if part != "train" and starts[part] is None:
        return None
    later = [time for time in list(starts.values())[list(starts).index(part) + 1 :] if time is not None]
    return recipe.located(
        ("data", "split"), data.TimeRange, split.column, starts[part], later[0] if later else None
    )


def open_whole(recipe: Recipe, schema: Schema, part: str) -> data.Dataset | None:
    """Return all rows of the files of `data.train` or another part, in order; None if the key is not set.

    The split's column is also read.
    """
    keys = recipe.sections.data
    sources, rows = getattr(keys, part), None
    if sources is None:
        return None
    if isinstance(keys.split, TimeSplitKeys) and part == "train":
        rows = data.TimeRange(keys.split.column)
    return _read(recipe, schema, [recipe.locate(source) for source in sources], format=keys.format, rows=rows)


def open_sources(recipe: Recipe, schema: Schema, sources: Sequence[str]) -> data.Dataset:
    """Return the rows of a user's files, in order and with the recipe's options.

    The sources are paths, globs or URLs, relative to the current folder. CSV options, joins and batch size
    come from the recipe, as does the format of files with an unknown extension.
    """
    try:
        kind: str | None = guess_format(sources[0])
    except ConfigError:
        kind = recipe.sections.data.format
    return _read(recipe, schema, sources, format=kind)


def _read(
    recipe: Recipe,
    schema: Schema,
    sources: Sequence[str],
    *,
    format: str | None,
    rows: data.RowSplit | data.TimeRange | None = None,
    shuffle: bool = False,
) -> data.Dataset:
    keys = recipe.sections.data
    joins = [data.Join(**{**join.model_dump(), "source": recipe.locate(join.source)}) for join in keys.join]
    rows_read = recipe.located(
        ("data",),
        data.read,
        list(sources),
        schema,
        batch_size=recipe.sections.batch_size,
        shuffle=shuffle,
        rows=rows,
        join=joins,
        format=format,
        csv=_csv_options(recipe),
    )
    shuffled = {"buffer_rows": keys.buffer_rows, "balance": keys.balance}
    return recipe.located(("data",), rows_read.with_options, seed=recipe.sections.training.seed, **shuffled)


def loader_service(recipe: Path) -> LoaderService:
    """Return the service of a loader, which reads the rows of a recipe in batches for workers."""
    loaded = load(recipe)

    def open_known(part: str, schema: Schema) -> data.Dataset | None:
        if part not in PARTS:
            raise ConfigError(f"unknown part {part!r} of the data", fix=f"use one of {', '.join(PARTS)}")
        return open_part(loaded, schema, part)

    return LoaderService(open_known)


def measured(recipe: Recipe, schema: Schema, known: Schema | None = None) -> Schema:
    """Return the schema with statistics of numeric features and labels from the training rows.

    Statistics in `known` are not computed again.
    """
    schema = schema if known is None else measured_as(schema, known)
    if all(is_measured(feature) for feature in schema.numeric.values()) and not any(
        label.unmeasured for label in schema.labels
    ):
        return schema
    train = open_part(recipe, schema, "train")
    assert train is not None
    return data.measure(schema, train)


def changed_files(recipe: Recipe) -> list[str]:
    """Return the files whose md5 differs from `about.md5`; missing files are left out."""
    return [
        name
        for name, digest in recipe.sections.about.md5.items()
        if (path := Path(recipe.locate(name))).is_file() and _md5(path) != digest.lower()
    ]


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
