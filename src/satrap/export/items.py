"""Vectors of the items of a two-tower model, for an index of nearest neighbours."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from satrap.config import Recipe
from satrap.data import Dataset
from satrap.data.batch_rows import take_rows
from satrap.data.formats.columns import taken
from satrap.errors import ConfigError, DataError
from satrap.launch.datasets import open_part, open_sources
from satrap.launch.folder.run_folder import RunFolder
from satrap.launch.predictions import Columns, ParquetWriter, output_columns
from satrap.launch.scoring import checked_output, load_predictor, model_place, scoring_recipe
from satrap.runtime.user_code import blaming
from satrap.schema import MISSING_ID, Categorical, Schema
from satrap.train.ranking.tower_vectors import TowerVectors

VECTOR = "vector"
"""Column of the vectors."""
ROWS = 8192
"""Rows to read at once, and fewest rows in a row group of the output, except the last."""
KEY = "\0id"
"""Name of the column that identifies items; a feature cannot have this name."""


def export_items(
    folder: RunFolder,
    output: str | Path,
    sources: Sequence[str] = (),
    overrides: Sequence[str] = (),
    *,
    column: str | None = None,
    tower: str = "item",
    step: int | None = None,
) -> int:
    """Write the vectors of the items of a two-tower model as Parquet; return their number.

    The file has the column of the ids, as in the data, and `vector`, a fixed-size list of float32. The score
    of `satrap predict` increases with the dot product of the vectors of user and item. Vectors are computed
    and written a few thousand at a time. With `sources`, memory in addition to the model's does not depend on
    the number of items; without `sources`, it grows by 8 bytes per item.

    Args:
        folder: folder of the run.
        output: a new file that ends in .parquet.
        sources: files with one row per item, as in `predict`; default: the first row of each item in the
            recipe's training rows, without rows that lack an id.
        overrides: as for `predict`.
        column: column of the ids; default: the column of the tower's first categorical feature.
        tower: "item", or "user" for the vectors of users.
        step: step of a snapshot or of a version of the feed; None: the trained model.

    Raises:
        ConfigError: the model has no towers, or the file cannot be written.
        DataError: the rows cannot be used.
    """
    target = checked_output(Path(output), (".parquet",))
    partial = target.with_name(f".{target.name}.partial")
    recipe = scoring_recipe(folder, overrides)
    with closing(load_predictor(folder, recipe, model_place(folder, recipe, step))) as predictor:
        vectors = TowerVectors(predictor, tower)
        name = column or vectors.first_column()
        if sources:
            rows = open_sources(recipe, vectors.schema, sources)
        else:
            rows = _training_rows(folder, recipe, _with_key(vectors.schema, name))
        rows = rows.with_options(batch_size=ROWS, shuffle=False, training=False)
        written = _written(rows, name, vectors, None if sources else _Seen())
        try:
            count = _write(partial, rows, name, written, {"step": predictor.step, "tower": tower})
            os.replace(partial, target)
        finally:
            partial.unlink(missing_ok=True)
    return count


def _with_key(schema: Schema, column: str) -> Schema:
    """Return a schema with `KEY`, a feature of the column that identifies items."""
    return Schema((), {**schema.features, KEY: Categorical(dim=1, column=column)})


def _training_rows(folder: RunFolder, recipe: Recipe, schema: Schema) -> Dataset:
    rows = open_part(recipe, schema, "train") if recipe.sections.data.train else None
    if rows is None:
        raise ConfigError(
            "the recipe names no training rows, so the items are unknown",
            where=str(folder),
            fix="give a file with one row per item: --input FILE",
        )
    return rows


class _Seen:
    """The ids of the items written so far, 8 bytes each."""

    def __init__(self) -> None:
        self._ids = np.empty(0, np.uint64)

    def new(self, ids: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Return the positions of ids not seen before, in order; missing ids are left out."""
        distinct, first = np.unique(ids, return_index=True)
        places = np.searchsorted(self._ids, distinct)
        fresh = distinct != MISSING_ID
        inside = places < len(self._ids)
        fresh[inside] &= self._ids[places[inside]] != distinct[inside]
        self._ids = np.insert(self._ids, places[fresh], distinct[fresh])
        return np.sort(first[fresh])


def _written(
    rows: Dataset, column: str, vectors: TowerVectors, seen: _Seen | None
) -> Iterator[tuple[pa.Table, npt.NDArray[np.float32]]]:
    """Yield the ids of items, a table of one column, with their vectors."""
    for table, batch in rows.tables_and_batches([column]):
        if seen is not None:
            new = seen.new(batch.ids[KEY].values)
            if not len(new):
                continue
            table, batch = taken(table, new), take_rows(batch, new)
        with blaming("your own code failed"):
            made = vectors(batch)
        yield table, made


def _write(
    path: Path,
    rows: Dataset,
    column: str,
    written: Iterator[tuple[pa.Table, npt.NDArray[np.float32]]],
    about: Mapping[str, Any],
) -> int:
    """Write ids and vectors in row groups of at least `ROWS`; return the number of rows."""
    first = next(written, None)
    if first is None:
        raise DataError("the input has no items", fix="give a file with one row per item: --input FILE")
    kinds = {VECTOR: pa.list_(pa.float32(), first[1].shape[1])}
    columns = output_columns(rows.schemas(), kinds, [column])
    with VectorWriter(path, columns, about) as writer:
        held, count = [first], first[0].num_rows
        for part in written:
            if count >= ROWS:
                writer.write(*_joined(held))
                held, count = [], 0
            held.append(part)
            count += part[0].num_rows
        writer.write(*_joined(held))
        return writer.rows


def _joined(
    held: Sequence[tuple[pa.Table, npt.NDArray[np.float32]]],
) -> tuple[pa.Table, npt.NDArray[np.float32]]:
    tables, vectors = zip(*held, strict=True)
    return pa.concat_tables(tables, promote_options="permissive"), np.concatenate(vectors)


class VectorWriter(ParquetWriter):
    """Writes ids and vectors; `about` becomes file metadata `satrap.<name>`."""

    def __init__(self, path: Path, columns: Columns, about: Mapping[str, Any]) -> None:
        super().__init__(path, columns)
        self._file.add_key_value_metadata({f"satrap.{name}": str(value) for name, value in about.items()})

    def _values(self, values: npt.NDArray[Any]) -> list[pa.Array]:
        return [pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])]
