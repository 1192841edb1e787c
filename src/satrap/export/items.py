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
import torch

from satrap.batch import Batch
from satrap.config import Recipe
from satrap.data import Dataset
from satrap.data.batch_rows import take_rows
from satrap.data.formats.columns import taken
from satrap.embedding import embeddings_of
from satrap.errors import ConfigError, DataError, did_you_mean
from satrap.launch.datasets import open_part, open_sources
from satrap.launch.folder.run_folder import RunFolder
from satrap.launch.predictions import Columns, ParquetWriter, output_columns
from satrap.launch.scoring import checked_output, load_predictor, model_place, scoring_recipe
from satrap.pairs import TwoTowers
from satrap.runtime.user_code import blaming
from satrap.schema import MISSING_ID, Categorical, Schema
from satrap.train import Predictor

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
            rows = _training_rows(folder, recipe, vectors.with_key(name))
        rows = rows.with_options(batch_size=ROWS, shuffle=False)
        written = _written(rows, name, vectors, None if sources else _Seen())
        try:
            count = _write(partial, rows, name, written, {"step": predictor.step, "tower": tower})
            os.replace(partial, target)
        finally:
            partial.unlink(missing_ok=True)
    return count


class TowerVectors:
    """Computes the vectors of one tower of a trained model.

    ```python
    with closing(satrap.train.Predictor.load("runs/x")) as predictor:
        users = TowerVectors(predictor, "user")
        for batch in satrap.data.read("users.parquet", users.schema):
            users(batch)                                       # float32[batch.size, width]
    ```

    Args:
        predictor: with the model and its rows.
        tower: "user" or "item".

    Attributes:
        schema: the features of the tower.

    Raises:
        ConfigError: the model has no towers, or none of that name.
    """

    def __init__(self, predictor: Predictor, tower: str) -> None:
        model, schema = predictor.model, predictor.schema
        if not isinstance(model, TwoTowers):
            raise ConfigError(
                f"{type(model).__name__} has no towers",
                why="the model scores user and item together, so an item does not have a separate vector",
                fix="train model: {name: two_tower, item: [...]}, or define tower_features and tower_vectors "
                "in your own model",
            )
        if tower not in model.tower_features:
            towers = list(model.tower_features)
            raise ConfigError(
                f"tower {tower!r} is unknown", fix=f"{did_you_mean(tower, towers)}towers: {', '.join(towers)}"
            )
        self._model, self._tower, self._exchange = model, tower, predictor.exchange
        features = {name: schema.features[name] for name in model.tower_features[tower]}
        self.schema = Schema((), features, salt=schema.salt)
        used = {self.schema.table_of(name) for name in self.schema.categorical}
        groups = [group for group in predictor.exchange.groups if used.intersection(group.tables)]
        device = predictor.embeddings.device
        self._plan, self._embeddings = embeddings_of(predictor.exchange, self.schema, groups, device)
        predictor.model.eval()

    def __call__(self, batch: Batch) -> npt.NDArray[np.float32]:
        """Return float32[batch.size, width] of samples with the features of the tower."""
        ticket = self._plan.ticket(batch)
        rows = self._exchange.lookup(ticket.requests, create=False).result()
        with torch.no_grad():
            embedded = self._embeddings.embed(ticket, self._embeddings.rows(rows))
            vectors = self._model.tower_vectors(self._tower, embedded).float().cpu().numpy()
        return np.ascontiguousarray(vectors)

    def first_column(self) -> str:
        """Return the column of the first categorical feature; raise `ConfigError` if none exists."""
        for name, feature in self.schema.categorical.items():
            if not feature.multi and not feature.cross:
                return feature.column or name
        raise ConfigError(
            f"tower {self._tower} has no categorical feature, so the column of the ids is unknown",
            fix="name the column: --id COLUMN",
        )

    def with_key(self, column: str) -> Schema:
        """Return the schema with `KEY`, a feature of the column that identifies items."""
        return Schema((), {**self.schema.features, KEY: Categorical(dim=1, column=column)})


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
