"""Batches from columns in memory: the batches of a loop or a data loader of the user's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from satrap.batch import Batch
from satrap.data.encode.encoder import MISSING, Encoder, needed_columns
from satrap.data.formats.arrays import table_of
from satrap.data.formats.bags import with_bags
from satrap.data.source import Origin, check_columns
from satrap.errors import DataError
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
