"""Statistics of numeric features and of regression labels, measured while streaming over the data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from satrap.data.dataset import Dataset
from satrap.data.encode.encoder import ColumnChunk, Missing
from satrap.data.encode.folds import FoldColumns, fold_of
from satrap.data.encode.tally import IdTally
from satrap.data.encode.transforms import (
    Doubles,
    compile_steps,
    lacks_counts,
    measured_step,
    measures,
    needs_sample,
    unmeasured,
)
from satrap.errors import DataError
from satrap.runtime.arguments import checked
from satrap.schema import Feature, Label, Numeric, Schema, binary_label

BLOCK = 1 << 15
"""Numbers per block of statistics."""
SAMPLE = 200_000
"""Largest sample for quantiles; fewer numbers are used in full."""


class Moments:
    """Running mean, variance and range of numbers that arrive in pieces; NaN is ignored.

    Blocks of `BLOCK` numbers are merged with the formula of Chan, Golub and LeVeque (1979), which is stable
    for numbers with any offset. The result does not depend on how the numbers are cut into pieces, so it is
    bit-identical for every file format. Call `end` after the last piece.
    """

    def __init__(self) -> None:
        self.count, self.mean, self._squares = 0, 0.0, 0.0
        self.low, self.high = np.inf, -np.inf
        self._held = np.empty(0)

    def add(self, values: Doubles) -> None:
        """Add numbers, float64[n]."""
        held = np.concatenate((self._held, values[~np.isnan(values)]))
        whole = len(held) // BLOCK * BLOCK
        for start in range(0, whole, BLOCK):
            self._merge(held[start : start + BLOCK])
        self._held = held[whole:]

    def end(self) -> None:
        """Include the remaining numbers that do not fill a block."""
        if len(self._held):
            self._merge(self._held)
        self._held = np.empty(0)

    def _merge(self, values: Doubles) -> None:
        mean = float(values.mean())
        squares = float(np.square(values - mean).sum())
        count, difference = self.count + len(values), mean - self.mean
        self._squares += squares + difference**2 * self.count * len(values) / count
        self.mean += difference * len(values) / count
        self.count = count
        self.low, self.high = min(self.low, float(values.min())), max(self.high, float(values.max()))

    def statistics(self) -> dict[str, Any]:
        """Return the statistics for `measured_step`; call `end` before."""
        return {"mean": self.mean, "std": self.std, "min": self.low, "max": self.high}

    @property
    def std(self) -> float:
        """Population standard deviation; 0 without numbers."""
        return float(np.sqrt(self._squares / self.count)) if self.count else 0.0


class NumberSample:
    """A uniform sample of up to `size` of the numbers that arrive in pieces; NaN is ignored.

    The sample does not depend on how the numbers are cut into pieces.
    """

    def __init__(self, size: int = SAMPLE) -> None:
        self.count, self._size, self._random = 0, size, np.random.default_rng(0)
        self._keys, self._numbers = np.empty(0), np.empty(0)

    def add(self, values: Doubles) -> None:
        """Add numbers, float64[n]."""
        values = values[~np.isnan(values)]
        self.count += len(values)
        self._keys = np.concatenate((self._keys, self._random.random(len(values))))
        self._numbers = np.concatenate((self._numbers, values))
        if len(self._keys) > 2 * self._size:
            self._shrink()

    def end(self) -> None:
        """Do nothing: `numbers` is always up to date."""

    def numbers(self) -> Doubles:
        """Return the sample, float64[m]."""
        self._shrink()
        return self._numbers

    def statistics(self) -> dict[str, Any]:
        """Return the statistics for `measured_step`."""
        return {"sample": self.numbers()}

    def _shrink(self) -> None:
        if len(self._keys) > self._size:
            indices = np.argpartition(self._keys, self._size)[: self._size]
            self._keys, self._numbers = self._keys[indices], self._numbers[indices]


@checked()
def measure(schema: Schema, dataset: Dataset) -> Schema:
    """Return the schema with the statistics of transforms such as "standardize" and of labels filled in.

    Also the counts of ids for features with `count` or `mean_label`. Reads the dataset's rows (its row split
    and worker shard) once for features, once for labels and once for counts, if they have anything to
    measure, and again for a feature's second step that needs statistics.

    Args:
        schema: the schema to complete.
        dataset: the training data, read with the same schema.

    Raises:
        DataError: a feature has no numbers, all known values of a label are equal, or ids cannot be counted.
        ConfigError: a feature's `mean_label` has no binary label.
    """
    dataset = dataset.with_options(training=True)
    schema = _measure_counts(_measure_labels(schema, dataset), dataset)
    while open_steps := {
        name: step for name, feature in schema.numeric.items() if (step := unmeasured(feature)) is not None
    }:
        schema = _measure_once(schema, dataset, open_steps)
    return schema


def measured_as(schema: Schema, known: Schema) -> Schema:
    """Return the schema with the statistics of another schema filled in where the two agree.

    Mean labels are not filled in if their folds depend on other columns.
    """
    features = {
        name: replace(feature, transform=known.numeric[name].transform, counts=known.numeric[name].counts)
        for name, feature in schema.numeric.items()
        if name in known.numeric
        and measures(feature, known.numeric[name])
        and _same_counts(name, feature, schema, known)
    }
    labels = {label.name: label for label in known.labels}
    return schema.replace(features, [_as_known(label, labels.get(label.name)) for label in schema.labels])


def _same_counts(name: str, feature: Numeric, schema: Schema, known: Schema) -> bool:
    """Return whether the counts of a feature, if it has some, are of the same ids, folds and label."""
    if not feature.of_ids or feature.mean_label is None:
        return not feature.of_ids or schema.salt == known.salt
    counts, label = known.numeric[name].counts, feature.mean_label.label
    targets = [_target(binary_label(name, label, each.labels)) for each in (schema, known)]
    same_folds = counts is not None and counts.folds_by in (0, FoldColumns(schema).digest)
    return schema.salt == known.salt and targets[0] == targets[1] and same_folds


def _target(label: Label) -> tuple[Any, ...]:
    """Return the settings that decide the numbers of a label, and in which rows it is known."""
    return label.kind, label.column or label.name, label.positive, label.threshold, label.mask


def _as_known(label: Label, known: Label | None) -> Label:
    if known is None or known.unmeasured or not label.unmeasured or _target(label) != _target(known):
        return label
    mean = known.mean if label.mean is None else label.mean
    return replace(label, mean=mean, std=known.std if label.std is None else label.std)


def _measure_labels(schema: Schema, dataset: Dataset) -> Schema:
    chosen = tuple(label for label in schema.labels if label.unmeasured)
    if not chosen:
        return schema
    moments = {label.name: Moments() for label in chosen}
    columns: dict[str, Feature] = {label.name: Numeric(column=label.column) for label in chosen}
    probe = dataset.with_options(schema=Schema(chosen, columns, salt=schema.salt))  # needs some feature
    missing = Missing(dataset.settings.missing, schema.salt)
    for piece in probe.pieces():
        values, known = ColumnChunk(piece.table, piece.origin, schema.salt, missing, {}).labels(chosen)
        for i, measured in enumerate(moments.values()):
            measured.add((values[:, i] if known is None else values[known[:, i], i]).astype(np.float64))
    for measured in moments.values():
        measured.end()
    return schema.replace({}, [_scaled(label, moments.get(label.name)) for label in schema.labels])


def _scaled(label: Label, found: Moments | None) -> Label:
    """Return a label with its measured statistics."""
    if found is None:
        return label
    if found.std == 0:
        raise DataError(
            f"label {label.name!r} has the same value in all training rows",
            why="a constant label leaves nothing to learn",
            fix="check the column, or set mean and std of the label",
        )
    mean = found.mean if label.mean is None else label.mean
    if label.loss == "poisson":
        return replace(label, mean=mean)
    return replace(label, mean=mean, std=found.std if label.std is None else label.std)


def _measure_counts(schema: Schema, dataset: Dataset) -> Schema:
    chosen = {name: feature for name, feature in schema.numeric.items() if lacks_counts(feature)}
    if not chosen:
        return schema
    labels = {
        name: binary_label(name, feature.mean_label.label, schema.labels)
        for name, feature in chosen.items()
        if feature.mean_label is not None
    }
    tallies = {name: IdTally(name, feature.mean_label) for name, feature in chosen.items()}
    needed = tuple(label for label in schema.labels if label in labels.values())
    # All features: their values decide the folds.
    probe = dataset.with_options(schema=Schema(needed, schema.features, salt=schema.salt))
    missing, folds_by = Missing(dataset.settings.missing, schema.salt), FoldColumns(schema)
    for piece in probe.pieces():
        chunk = ColumnChunk(piece.table, piece.origin, schema.salt, missing, {})
        targets = {label.name: chunk.labels((label,)) for label in needed}
        hashes = folds_by.hashes(chunk.hashed, chunk.floats) if needed else None
        for name, feature in chosen.items():
            ids = chunk.hashed(feature.column or name)
            if hashes is None or name not in labels:
                tallies[name].add(ids)
                continue
            values, known = targets[labels[name].name]
            tallies[name].add(ids, fold_of(hashes, tallies[name].folds), values[:, 0], known)
    filled = {name: replace(feature, counts=tallies[name].counts()) for name, feature in chosen.items()}
    for feature in filled.values():
        assert feature.counts is not None
        feature.counts.folds_by = folds_by.digest
    return schema.replace(filled)


def _measure_once(schema: Schema, dataset: Dataset, open_steps: Mapping[str, int]) -> Schema:
    chosen = {name: schema.numeric[name] for name in open_steps}
    before = {name: compile_steps(chosen[name], name, step) for name, step in open_steps.items()}
    measurements: dict[str, Moments | NumberSample] = {
        name: NumberSample() if needs_sample(chosen[name], step) else Moments()
        for name, step in open_steps.items()
    }
    sequence_ids = {schema.sequences[f.sequence].ids[0] for f in chosen.values() if f.sequence}
    folded = any(feature.mean_label for feature in chosen.values())  # all features decide the folds
    names = schema.features if folded else (*chosen, *sequence_ids)  # a sequence has ids
    needed = {name: schema.features[name] for name in names}
    probe = dataset.with_options(schema=Schema([], needed, salt=schema.salt))
    missing, folds_by = Missing(dataset.settings.missing, schema.salt), FoldColumns(schema)
    for piece in probe.pieces():
        chunk = ColumnChunk(piece.table, piece.origin, schema.salt, missing, {})
        chunk.row_hashes = folds_by.hashes(chunk.hashed, chunk.floats) if folded else None
        for name, feature in chosen.items():
            measurements[name].add(before[name](chunk.numbers(name, feature)))
    filled = {}
    for name, measurement in measurements.items():
        measurement.end()
        if not measurement.count:
            raise DataError(
                f"feature {name!r} has no numbers to measure", fix="check the column, or remove the feature"
            )
        filled[name] = measured_step(chosen[name], open_steps[name], measurement.statistics())
    return schema.replace(filled)
