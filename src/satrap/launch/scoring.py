"""Scores of a trained model: metrics of files, and predictions from files to a file, in bounded memory."""

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from satrap.batch import Batch
from satrap.checkpoint.series import newest
from satrap.config import Recipe
from satrap.data import Dataset
from satrap.errors import ConfigError, DataError, StoreError
from satrap.launch.build import make_model, own_functions, store_of
from satrap.launch.datasets import open_part, open_sources
from satrap.launch.folder import RunFolder
from satrap.own_code import blaming
from satrap.schema import Label
from satrap.train import Predictor

ENDINGS = (".parquet", ".csv", ".csv.gz")

SCORING_KEYS = (
    *("embedding.memory", "embedding.eviction", "embedding.tier", "training.device"),
    *("tables.*.memory", "tables.*.eviction"),
)
"""Keys of a recipe that can be overridden when its trained model is used: they do not change the model."""

TellShares = Callable[[Mapping[str, float]], object]


def scoring_recipe(folder: RunFolder, overrides: Sequence[str]) -> Recipe:
    """Return the recipe of a run, with overrides; a key that changes the model is a ConfigError."""
    for override in overrides:
        key = override.partition("=")[0].strip()
        if not any(fnmatchcase(key, known) or fnmatchcase(key, f"{known}.*") for known in SCORING_KEYS):
            raise ConfigError(
                f"{key} of a trained model cannot be set", fix=f"set one of {', '.join(SCORING_KEYS)}"
            )
    return folder.recipe(overrides)


def load_predictor(folder: RunFolder, recipe: Recipe) -> Predictor:
    """Return a predictor with the model of a run, or with its newest snapshot if the run was stopped.

    Rows are kept as the recipe says: within `embedding.memory` and the tables' own, and in `embedding.tier`.
    If they do not fit, raises ConfigError.
    """
    store = store_of(recipe)
    if store.tier is None:  # rows that are evicted would be lost
        own = {name: replace(table, eviction=None) for name, table in store.tables.items()}
        store = replace(store, eviction=None, tables=own)
    ended = folder.model.exists() and folder.stopped != "stopped"
    place = str(folder.model) if ended else newest(folder.snapshots(recipe))
    try:
        predictor = Predictor.load(
            place,
            partial(make_model, recipe) if ("model", "class") in recipe.own_code() else None,
            device=recipe.sections.training.device,
            store=store,
            metrics=tuple(own_functions(recipe, "metrics").values()),
        )
    except StoreError as error:
        raise _no_room(folder, error.what) from error
    lost = sum(table.evicted for table in predictor.statistics().tables.values())
    if lost:
        predictor.close()
        raise _no_room(folder, f"no room for {lost} rows")
    return predictor


def _no_room(folder: RunFolder, why: str) -> ConfigError:
    return ConfigError(
        "the rows of the trained model do not fit",
        where=str(folder.model),
        why=why,
        fix="give more: --set embedding.memory=SIZE, --set 'embedding.tier={path: FOLDER, size: SIZE}'",
    )


def unseen(predictor: Predictor) -> dict[str, float]:
    """Return, by table, the share of requested ids that had no row.

    Ids count once per batch. An id has no row if training never met it, did not admit it, or evicted it.
    """
    found = predictor.statistics()
    return {table: found.unseen[table] / ids for table, ids in found.peeked.items() if ids}


def evaluate(
    folder: RunFolder,
    sources: Sequence[str] = (),
    overrides: Sequence[str] = (),
    *,
    shares: TellShares = lambda _: None,
) -> dict[str, float]:
    """Return the metrics of a trained model; call `shares` with the share of unseen ids by table.

    The sources are files with labels, relative to the current folder; default the recipe's test rows, else
    its validation rows. Overrides are `key=value` texts for keys of `SCORING_KEYS`.
    """
    recipe = scoring_recipe(folder, overrides)
    with closing(load_predictor(folder, recipe)) as predictor:
        schema = predictor.schema
        if sources:
            rows: Dataset | None = open_sources(recipe, schema, sources)
        else:
            rows = open_part(recipe, schema, "test") or open_part(recipe, schema, "validation")
        if rows is None:
            raise ConfigError(
                "no recipe names test or validation rows",
                where=str(folder),
                fix="give the rows: --input FILE",
            )
        with blaming("your own code failed"):
            metrics = predictor.evaluate(rows)
        shares(unseen(predictor))
        return metrics


def predict(
    folder: RunFolder,
    sources: Sequence[str],
    output: str | Path,
    overrides: Sequence[str] = (),
    *,
    shares: TellShares = lambda _: None,
) -> int:
    """Score files with a trained model; return the number of rows.

    The output, a new file ending in .parquet, .csv or .csv.gz, has the input's columns and, beside them,
    `<label>_probability` of a binary label, `<label>_probability_<class>` for each class of a multiclass one
    and `<label>_prediction` of a regression label. It appears under its name only when it is complete. The
    sources, relative to the current folder, need no labels; `overrides` and `shares` are as for `evaluate`.
    """
    target = _checked(Path(output))
    partial = target.with_name(f".{target.name}.partial")
    recipe = scoring_recipe(folder, overrides)
    predictor = load_predictor(folder, recipe)
    try:
        rows = open_sources(recipe, predictor.schema.without_labels(), sources)
        with blaming("your own code failed"):
            count = _write(scored_tables(predictor, rows), partial, target.name)
        os.replace(partial, target)
        shares(unseen(predictor))
        return count
    finally:
        predictor.close()
        partial.unlink(missing_ok=True)


def _checked(output: Path) -> Path:
    if not output.name.endswith(ENDINGS):
        raise ConfigError(
            f"cannot tell the format of the output {output.name!r}",
            fix=f"end its name in {', '.join(ENDINGS)}",
        )
    if output.exists():
        raise ConfigError(
            "the output file already exists", where=str(output), fix="choose another name, or remove it"
        )
    if not output.parent.is_dir():
        raise ConfigError(
            "the folder of the output does not exist", where=str(output.parent), fix="create it first"
        )
    return output


def scored_tables(predictor: Predictor, rows: Dataset) -> Iterator[pa.RecordBatch]:
    """Yield the input as tables with columns for predictions, in the order of the data.

    The predictor reads a few batches ahead.
    """
    waiting: deque[pa.RecordBatch] = deque()

    def batches() -> Iterator[Batch]:
        for table, batch in rows.tables_and_batches():
            waiting.append(table)
            yield batch

    names = {
        name: pa.float64() if label.kind == "regression" else pa.float32()
        for label in predictor.schema.labels
        for name in _columns_of(label)
    }
    for predictions in predictor.predict_batches(batches()):
        yield _with_predictions(waiting.popleft(), predictions, names)


def _columns_of(label: Label) -> list[str]:
    """Return the columns of a label's predictions."""
    if label.kind == "multiclass":
        classes = range(label.outputs) if isinstance(label.classes, int) else label.classes or ()
        return [f"{label.name}_probability_{one}" for one in classes]
    return [f"{label.name}_{'prediction' if label.kind == 'regression' else 'probability'}"]


def _with_predictions(
    table: pa.RecordBatch, values: npt.NDArray[Any], names: Mapping[str, pa.DataType]
) -> pa.RecordBatch:
    for index, (name, kind) in enumerate(names.items()):
        if name in table.column_names:
            raise DataError(
                f"the input already has a column {name!r}", fix="remove or rename it in the input"
            )
        table = table.append_column(name, pa.array(values[:, index], type=kind))
    return table


def _write(tables: Iterator[pa.RecordBatch], partial: Path, name: str) -> int:
    """Write tables to a file, one at a time; return the number of rows."""
    count = 0
    with ExitStack() as stack:
        writer: Any = None
        for table in tables:
            if not name.endswith(".parquet"):  # ids of `satrap prepare` become plain numbers
                plain = [
                    column.storage if isinstance(column, pa.ExtensionArray) else column for column in table
                ]
                table = pa.RecordBatch.from_arrays(plain, table.schema.names)
            if writer is None:
                writer = stack.enter_context(_writer(stack, partial, name, table.schema))
            writer.write(table)
            count += table.num_rows
    if count == 0:
        raise DataError("the input has no rows", fix="give files with at least one row")
    return count


def _writer(stack: ExitStack, partial: Path, name: str, schema: pa.Schema) -> Any:
    if name.endswith(".parquet"):
        return pyarrow.parquet.ParquetWriter(partial, schema)
    nested = [field.name for field in schema if pa.types.is_nested(field.type)]
    if nested:
        raise DataError(
            f"column {nested[0]!r} of the input holds lists, which a CSV file cannot hold",
            fix="give --output a name that ends in .parquet",
        )
    compression = "gzip" if name.endswith(".gz") else None
    sink = stack.enter_context(pa.output_stream(str(partial), compression=compression))
    return pyarrow.csv.CSVWriter(sink, schema)
