"""Scores for a report: ROC, calibration and feature importance, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import reduce

import numpy as np

from satrap.batch import Batch, Jagged
from satrap.data.batch_rows import slice_rows, take_jagged
from satrap.data.sample import Sample
from satrap.metrics.curves import ScoreCurves
from satrap.runtime.formatting import quality
from satrap.schema import Categorical, Schema
from satrap.tools.report_page import LabelCurves, Scores
from satrap.train.predictor import BatchSource, Predictor, Rows

SAMPLED_ROWS = 20_000
"""Number of rows on which features are permuted."""
PIECE_ROWS = 4096
"""Number of these rows scored at a time."""


def scores(predictor: Predictor, data: BatchSource, part: str, *, sampled: int = SAMPLED_ROWS) -> Scores:
    """Score all rows of a part of the data once, and a sample of the rows again for each column.

    Args:
        predictor: the trained model.
        data: the rows, with labels.
        part: "validation" or "test".
        sampled: maximum number of rows with permuted features, drawn uniformly from all rows.

    Raises:
        DataError: the rows cannot be read, or there are none.
    """
    schema = predictor.schema
    curves = {label.name: ScoreCurves() for label in schema.labels if label.kind == "binary"}
    sample = Sample(sampled)
    for batch, predictions in predictor.scored(data.batches()):
        sample.add(batch)
        _add(curves, schema, batch, predictions)
    rows = sample.rows()
    labels = {name: _of(curve) for name, curve in curves.items()}
    if rows is None:
        return Scores(part, 0)
    base, permuted = gains(predictor, rows)
    several = {name: features for name, features in groups(schema).items() if len(features) > 1}
    return Scores(part, sample.seen, labels, rows.size, base, permuted, several)


def groups(schema: Schema) -> dict[str, tuple[str, ...]]:
    """Return name -> features made from the same column, or from the same set of columns.

    The name is the column's name if a feature has it, else the name of the first feature.
    """
    by_columns: dict[tuple[str, ...], list[str]] = {}
    for name, feature in schema.features.items():
        cross = feature.cross if isinstance(feature, Categorical) else None
        by_columns.setdefault(cross or (feature.column or name,), []).append(name)
    return {
        columns[0] if columns[0] in features else features[0]: tuple(features)
        for columns, features in by_columns.items()
    }


def gains(
    predictor: Predictor, rows: Batch, *, seed: int = 0
) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Return the metrics of some rows, and for each of `groups` the metrics with its values in random order.

    The difference shows how much the model relies on a column in addition to the others: permutation
    importance, Breiman, "Random Forests", Machine Learning 2001, section 10. All features of a group get the
    same order of rows, because an unpermuted feature would reveal the values of the column.
    """
    order = np.random.default_rng(seed).permutation(rows.size)

    def measured(batch: Batch) -> dict[str, float]:
        pieces = (
            slice_rows(batch, at, min(at + PIECE_ROWS, batch.size)) for at in range(0, batch.size, PIECE_ROWS)
        )
        return quality(predictor.measure(pieces).compute())

    def permuted(features: Iterable[str]) -> Batch:
        return reduce(lambda batch, name: _permuted(batch, predictor.schema, name, order), features, rows)

    return measured(rows), {
        name: measured(permuted(features)) for name, features in groups(predictor.schema).items()
    }


def _permuted(rows: Batch, schema: Schema, feature: str, order: np.ndarray) -> Batch:
    """Return the rows with the values of one feature in another order.

    For a sequence feature, values are permuted among events, so that sequences keep their lengths.
    """
    if feature in rows.events:
        return replace(rows, events={**rows.events, feature: _exchanged(rows.events[feature])})
    if feature in rows.ids and schema.categorical[feature].sequence is not None:
        return replace(rows, ids={**rows.ids, feature: _exchanged(rows.ids[feature])})
    if feature in rows.ids:
        return replace(rows, ids={**rows.ids, feature: take_jagged(rows.ids[feature], order)})
    assert rows.numeric is not None
    columns = schema.numeric_columns[feature]
    numeric = rows.numeric.copy()
    numeric[:, columns] = numeric[order, columns]
    return replace(rows, numeric=numeric)


def _exchanged(events: Jagged) -> Jagged:
    return replace(events, values=np.random.default_rng(0).permutation(events.values))


def _add(curves: Mapping[str, ScoreCurves], schema: Schema, batch: Batch, predictions: Rows) -> None:
    """Add the known samples of each binary label to its curves."""
    assert batch.labels is not None
    weights = np.ones(batch.size, np.float32) if batch.weights is None else batch.weights
    column = 0
    for index, label in enumerate(schema.labels):
        if label.name in curves:
            labelled = slice(None) if batch.label_mask is None else batch.label_mask[:, index]
            curves[label.name].add(
                np.ascontiguousarray(predictions[labelled, column], np.float32),
                batch.labels[labelled, index] == 1,
                weights[labelled],
            )
        column += label.outputs


def _of(curves: ScoreCurves) -> LabelCurves:
    calibration = curves.calibration()
    return LabelCurves(
        auc=curves.auc()[0],
        roc=[(float(x), float(y)) for x, y in zip(*curves.roc(), strict=True)],
        calibration=[
            (float(x), float(y)) for x, y in zip(calibration.predicted, calibration.observed, strict=True)
        ],
    )
