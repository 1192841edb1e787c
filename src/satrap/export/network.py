"""Exports the network of a trained run as a `torch.export` program, without the tables."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from satrap import models
from satrap.batch import EmbeddedBatch
from satrap.checkpoint import read_checkpoint
from satrap.checkpoint.feed import check_format
from satrap.checkpoint.files.counts import apart
from satrap.checkpoint.manifest import reading_settings
from satrap.checkpoint.series import newest
from satrap.dense.compute.precision import computed
from satrap.errors import ConfigError
from satrap.launch.folder.run_folder import RunFolder
from satrap.launch.network import make_model
from satrap.launch.scoring import checked_output, model_place
from satrap.runtime.formatting import counted
from satrap.schema import Schema
from satrap.train.state.rebuild import trainer_arguments
from satrap.train.step.loss import as_matrix, as_tensor, prediction_names, predictions

FORMAT = 1
"""Version of the program's description."""
BATCH = 65536
"""Largest batch of the program, in samples."""
EXAMPLE = 3
"""Samples of the traced batch: with 0 or 1, PyTorch would fix the size."""
CPU = torch.device("cpu")


def export_network(folder: RunFolder, output: str | Path, *, step: int | None = None) -> dict[str, Any]:
    """Write the network of a trained run as a `torch.export` program, with a JSON description next to it.

    Counts of ids, from which features are made, are in safetensors files next to them.

    The program starts after lookup and pooling, and returns the predictions of `satrap predict` within 1e-5,
    for any batch of 1 to 65,536 samples. Its inputs, by name, are `vectors`, the concatenated pooled rows of
    all categorical features, and `numeric`, the transformed numbers; an input that the model does not have is
    left out. `torch.export.load` does not need satrap. No rows are read.

    Args:
        folder: folder of the run.
        output: a new file that ends in .pt2; the description ends in .json.
        step: step of a snapshot or of a version of the feed; None: the trained model.

    Returns:
        The description: model, step, inputs with their columns and tables, outputs, and the schema.

    Raises:
        ConfigError: the model cannot be exported, or the files cannot be written.
        CheckpointError: the trained model is damaged.
    """
    target = checked_output(Path(output), (".pt2",))
    beside = checked_output(target.with_suffix(".json"), (".json",))
    recipe = folder.recipe()
    place = model_place(folder, recipe, step)
    checkpoint = read_checkpoint(newest(place))
    check_format(checkpoint.settings, place)
    make = partial(make_model, recipe) if ("model", "class") in recipe.own_code() else None
    saved = trainer_arguments(checkpoint, make, place)
    model, schema, precision = saved["model"], saved["schema"], saved["training"].precision
    with reading_settings(place):
        model.load_state_dict(checkpoint.model)
        trained = int(checkpoint.settings["steps"])
    program = exported(model, schema, precision)
    about = described(model, schema) | {"step": trained, "precision": precision, "run": str(folder)}
    about, counts = apart(about, f"{target.stem}.")
    partial_file = target.with_name(f".{target.name}.partial")
    try:
        with partial_file.open("wb") as file:
            torch.export.save(program, file)
        for name, data in counts.items():
            target.with_name(name).write_bytes(data)
        beside.write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
        os.replace(partial_file, target)
    finally:
        partial_file.unlink(missing_ok=True)
    return about


def exported(model: nn.Module, schema: Schema, precision: str = "float32") -> torch.export.ExportedProgram:
    """Return a network, from pooled rows and numbers to predictions, as a program for batches of any size.

    Args:
        model: the network; it is put into evaluation mode, and gradients of its weights are disabled.
        schema: its labels and features.
        precision: number format of its arithmetic, see `TrainingOptions`.

    Raises:
        ConfigError: the network takes rows that are not pooled, or PyTorch cannot export it.
    """
    _check_pooled(model, schema)
    wrapped = _Network(model, schema, precision).eval().requires_grad_(False)
    batch = torch.export.Dim("batch", min=1, max=BATCH)
    example = {name: torch.zeros(EXAMPLE, width) for name, width in wrapped.inputs.items()}
    shapes = {name: {0: batch} for name in example}
    try:
        with torch.no_grad():
            return torch.export.export(wrapped, (), example, dynamic_shapes=shapes, strict=False)
    except (RuntimeError, ValueError, TypeError, AttributeError, NotImplementedError) as error:
        reason = str(error).strip().splitlines() or [""]
        raise ConfigError(
            f"{type(model).__name__} cannot be exported: {type(error).__name__}: {reason[0][:200]}",
            why="torch.export needs a network of tensors whose steps do not depend on their values or number",
            fix="change the model's forward; torch.export's documentation lists its limitations",
        ) from error


def described(model: nn.Module, schema: Schema) -> dict[str, Any]:
    """Return the description of an exported network's inputs and outputs, as plain data."""
    widths, start = _row_widths(model, schema), 0
    vectors, numbers = [], []
    for name, width in widths.items():
        feature = schema.categorical[name]
        vectors.append(
            {
                "feature": name,
                "table": schema.table_of(name),
                "pooling": feature.pooling if feature.multi else "one",
                "start": start,
                "stop": (start := start + width),
            }
        )
    for name, part in schema.numeric_columns.items():
        numbers.append({"feature": name, "start": part.start, "stop": part.stop})
    columns = [name for label in schema.labels for name in prediction_names(label)]
    kind = "float32" if all(label.kind != "regression" for label in schema.labels) else "float64"
    inputs = {"vectors": (start, vectors), "numeric": (schema.numeric_width, numbers)}
    return {
        "format": FORMAT,
        "satrap": version("satrap"),
        "torch": torch.__version__,
        "model": models.describe(model) or {"class": type(model).__name__},
        "batch": {"min": 1, "max": BATCH},
        "inputs": [
            {"name": name, "dtype": "float32", "shape": ["batch", width], "columns": held}
            for name, (width, held) in inputs.items()
            if width
        ],
        "outputs": [
            {"name": "predictions", "dtype": kind, "shape": ["batch", len(columns)], "columns": columns}
        ],
        "schema": schema.to_dict(),
    }


class _Network(nn.Module):
    """Wraps a model: from matrices of pooled rows and of numbers to predictions."""

    def __init__(self, model: nn.Module, schema: Schema, precision: str) -> None:
        super().__init__()
        self.model, self._schema, self._precision = model, schema, precision
        self._widths = _row_widths(model, schema)
        wide = {"vectors": sum(self._widths.values()), "numeric": schema.numeric_width}
        self.inputs = {name: width for name, width in wide.items() if width}

    def forward(self, vectors: Tensor | None = None, numeric: Tensor | None = None) -> Tensor:
        present = numeric if vectors is None else vectors
        assert present is not None
        size = present.shape[0]
        vectors = present.new_zeros(size, 0) if vectors is None else vectors
        numeric = present.new_zeros(size, 0) if numeric is None else numeric
        pooled = dict(
            zip(self._widths, torch.split(vectors, list(self._widths.values()), dim=1), strict=True)
        )
        batch, outputs = EmbeddedBatch(size, pooled, numeric), self._schema.outputs
        logits = computed(lambda: as_tensor(self.model(batch), outputs), self._precision, CPU)
        return predictions(as_matrix(logits, size, outputs), self._schema.labels)


def _row_widths(model: nn.Module, schema: Schema) -> dict[str, int]:
    """Return feature -> width of its rows, in the order of `EmbeddedBatch.flat`."""
    dims: Mapping[str, int] = getattr(model, "embedding_dims", None) or {}
    return {name: dims.get(name, feature.dim) for name, feature in schema.categorical.items()}


def _check_pooled(model: nn.Module, schema: Schema) -> None:
    unpooled = [name for name, feature in schema.categorical.items() if feature.pooling == "none"]
    unpooled += [name for name, feature in schema.numeric.items() if feature.sequence]
    if unpooled:
        raise ConfigError(
            f"{type(model).__name__} cannot be exported: it reads {', '.join(unpooled)} event by event",
            why=f"an exported network takes one vector per feature, but this model takes a list of rows for "
            f"{counted(len(unpooled), 'feature')}, whose length differs by sample",
            fix="serve the run with satrap serve, or train a model with only pooled features",
        )
