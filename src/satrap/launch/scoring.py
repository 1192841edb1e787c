"""Prediction from files to a file, in bounded memory."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from satrap.batch import Batch
from satrap.data import Dataset
from satrap.errors import ConfigError, DataError
from satrap.launch.folder import RunFolder
from satrap.launch.inputs import open_sources
from satrap.launch.local import load_trainer, scoring_recipe
from satrap.train import Trainer

ENDINGS = (".parquet", ".csv", ".csv.gz")


def predict(
    folder: RunFolder, sources: Sequence[str], output: str | Path, overrides: Sequence[str] = ()
) -> int:
    """Score files with a trained model: input columns plus one `<label>_probability` column per label.

    The output appears under its name only when it is complete.

    Args:
        folder: of the run.
        sources: files without need of labels, relative to the current folder.
        output: a new file ending in .parquet, .csv or .csv.gz.
        overrides: as for `evaluate`.

    Returns:
        The number of rows written.

    Raises:
        ConfigError: the output exists or has another ending; the model's rows do not fit.
        DataError: the input cannot be read, is empty, or already has a probability column.
        CheckpointError: the saved model cannot be read.
    """
    target = _checked(Path(output))
    partial = target.with_name(f".{target.name}.partial")
    recipe = scoring_recipe(folder, overrides)
    trainer = load_trainer(folder, recipe)
    try:
        rows = open_sources(recipe, trainer.schema, sources, labels=False)
        count = _write(scored_tables(trainer, rows), partial, target.name)
        os.replace(partial, target)
        return count
    finally:
        trainer.close()
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


def scored_tables(trainer: Trainer, rows: Dataset) -> Iterator[pa.RecordBatch]:
    """Yield the input as tables with a probability column per label, in the order of the data.

    Args:
        trainer: the trained model; it reads a few batches ahead.
        rows: the input.

    Raises:
        DataError: the input already has such a column.
    """
    waiting: deque[pa.RecordBatch] = deque()

    def batches() -> Iterator[Batch]:
        for table, batch in rows.tables_and_batches():
            waiting.append(table)
            yield batch

    for probabilities in trainer.predict_batches(batches()):
        yield _with_probabilities(waiting.popleft(), probabilities, trainer.schema.label_names)


def _with_probabilities(
    table: pa.RecordBatch, values: npt.NDArray[Any], labels: Sequence[str]
) -> pa.RecordBatch:
    for index, label in enumerate(labels):
        name = f"{label}_probability"
        if name in table.column_names:
            raise DataError(
                f"the input already has a column {name!r}", fix="remove or rename it in the input"
            )
        table = table.append_column(name, pa.array(values[:, index], type=pa.float32()))
    return table


def _write(tables: Iterator[pa.RecordBatch], partial: Path, name: str) -> int:
    """Write tables to a file, one at a time; return the number of rows."""
    count = 0
    with ExitStack() as stack:
        writer: Any = None
        for table in tables:
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
    compression = "gzip" if name.endswith(".gz") else None
    sink = stack.enter_context(pa.output_stream(str(partial), compression=compression))
    return pyarrow.csv.CSVWriter(sink, schema)
