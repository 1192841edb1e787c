"""Batches from the data of Python programs: dicts of columns, and data loaders that yield them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from satrap.batch import Batch
from satrap.data.dataset import Dataset, read
from satrap.data.encode.encoder import MISSING, Encoder, needed_columns
from satrap.data.formats.arrays import table_of
from satrap.data.formats.bags import with_bags
from satrap.data.source import Origin, check_columns
from satrap.errors import ConfigError, DataError
from satrap.schema import Schema

LABEL = "batch"
"""Name of such batches in messages."""


class PythonBatches:
    """Encodes dicts of columns as batches, in the same way as the rows of a file.

    Args:
        schema: labels and features.
    """

    def __init__(self, schema: Schema) -> None:
        ids, numbers = needed_columns(schema)
        self._names = list(dict.fromkeys([*ids, *numbers]))
        self._encode = Encoder(schema, missing=MISSING)

    def batch(self, columns: Mapping[str, Any]) -> Batch:
        """Return the batch of some columns; others than the schema needs are ignored.

        Raises:
            DataError: a column is missing, or has values that cannot be used.
        """
        check_columns(self._names, list(columns), LABEL)
        table = table_of([(name, _column(name, columns[name])) for name in self._names], LABEL)
        return self._encode(table, Origin(LABEL, np.arange(table.num_rows)))


def _column(name: str, values: Any) -> Any:
    try:
        return with_bags(values)
    except DataError as error:
        where = f"{LABEL}, column {name!r}"
        raise DataError(error.what, where=where, why=error.why, fix=error.fix) from error


class LoaderBatches:
    """The batches of a `DataLoader`, or of any other iterable of dicts of columns.

    Items may also be of class `Batch`. Before each epoch, `set_epoch` of the loader, its data set or its
    sampler is called, if there is one. A resumed run reads and skips the batches that it has trained on, so
    their order must be the same.

    Args:
        items: yields the batches of one epoch each time it is iterated over.
        schema: labels and features of the dicts.
    """

    def __init__(self, items: Iterable[Any], schema: Schema) -> None:
        self._items, self._columns = items, PythonBatches(schema)
        self._read = False

    def batches(self, epoch: int = 0, position: Any = None) -> Iterator[Batch]:
        """Yield the batches of an epoch.

        Raises:
            DataError: an item that is not a dict of columns; no items; or an iterator that was read before.
        """
        for part in (self._items, *(getattr(self._items, name, None) for name in ("dataset", "sampler"))):
            if callable(set_epoch := getattr(part, "set_epoch", None)):
                set_epoch(epoch)
        items = iter(self._items)
        if self._read and items is self._items:
            raise DataError(
                "the batches can be read only once, and they were read before",
                where=_kind(self._items),
                why="each epoch reads all batches",
                fix="give a list or a torch.utils.data.DataLoader, or train with epochs=1",
            )
        self._read = True
        empty = True
        for item in items:
            empty = False
            # A resumed run counts the batches: their positions belong to a data set inside the loader.
            yield replace(item, position=None) if isinstance(item, Batch) else self._batch(item)
        if empty:
            raise DataError("no batches: the data is empty", where=_kind(self._items))

    def _batch(self, item: Any) -> Batch:
        if not isinstance(item, Mapping):
            raise DataError(
                f"a batch must be a dict of columns, got a value of type {type(item).__name__}",
                where=_kind(self._items),
                fix='let the data set give dicts: {"user": 7, "price": 2.5, "clicked": 1}',
            )
        return self._columns.batch(item)


def as_batches(data: Any, schema: Schema, *, name: str = "data", training: bool = False) -> Any:
    """Return data with a method `batches`: itself, `read(data, schema)`, or `LoaderBatches`.

    Args:
        data: has a method `batches`, or is anything `read` takes, or an iterable of dicts of columns.
        schema: labels and features.
        name: of the argument, for errors.
        training: rows that `read` reads are training rows: they are shuffled.

    Raises:
        ConfigError: another type of data.
        DataError: see `read`.
    """
    if callable(getattr(data, "batches", None)) and not isinstance(data, type):
        return data
    first = data[0] if isinstance(data, list | tuple) and data else None
    if isinstance(first, Mapping | Batch) or _is_loader(data):
        return LoaderBatches(data, schema)
    try:
        dataset: Dataset = read(data, schema)
    except ConfigError as error:
        where = error.where or f"argument {name!r}"
        raise ConfigError(error.what, where=where, why=error.why, fix=error.fix) from error
    return dataset.with_options(shuffle=True, training=True) if training else dataset


def _is_loader(data: Any) -> bool:
    """Return whether an object yields batches, and has no columns itself."""
    marks = ("__arrow_c_stream__", "__dataframe__", "with_format", "collect")  # of Arrow, datasets, polars
    table = any(hasattr(data, mark) for mark in marks)
    path = isinstance(data, str | bytes | os.PathLike | Mapping | list | tuple | type)
    return isinstance(data, Iterable) and not table and not path


def _kind(items: Any) -> str:
    return type(items).__name__
