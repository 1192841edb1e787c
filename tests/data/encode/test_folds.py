import numpy as np
import pyarrow as pa
import pytest

import satrap
from satrap import Categorical, Numeric, Schema, Vector
from satrap.data.encode.encoder import MISSING, ColumnChunk, Missing
from satrap.data.encode.folds import FoldColumns, fold_of
from satrap.data.source import Origin
from satrap.errors import ConfigError

FEATURES = {
    "user": Categorical(dim=4),
    "both": Categorical(dim=4, cross=("user", "item")),
    "level": Categorical(dim=4, column="x", boundaries=(0.0,)),
    "tags": Categorical(dim=4, multi=True),
    "hour": Categorical(dim=4, column="at", time="hour"),
    "age": Numeric(column="at", time="age"),
    "x": Numeric(),
    "often": Numeric(column="shop", count="log1p"),
    "picture": Vector(dim=2),
}
ROWS = {"user": ["a", "b"], "item": [1, 2], "x": [0.5, -1.0], "shop": ["s", ""], "y": [0, 1]}


def hashes(schema: Schema, **changes: list) -> np.ndarray:
    table = pa.table({**ROWS, **changes})
    chunk = ColumnChunk(table, Origin("", np.arange(2)), schema.salt, Missing(MISSING, schema.salt), {})
    return FoldColumns(schema).hashes(chunk.hashed, chunk.floats)


@pytest.mark.parametrize(
    ("changed", "differs"),
    [
        ({"user": ["c", "c"]}, True),
        ({"item": [3, 3]}, True),
        ({"x": [2.5, 2.5]}, True),
        ({"shop": ["t", "t"]}, True),
        ({"x": [0.5, None]}, None),
        ({"y": [1, 0]}, False),
        ({"user": ["a", "b"][::1]}, False),
        ({"x": ["0.5", "-1"]}, False),
    ],
)
def test_single_values_decide_and_labels_do_not(changed, differs):
    schema = Schema(["y"], FEATURES)
    same = hashes(schema) == hashes(schema, **changed)
    assert same.tolist() == ([True, False] if differs is None else [not differs] * 2)


def test_the_order_of_features_and_the_signs_of_zero_do_not_matter():
    swapped = Schema(["y"], dict(reversed(FEATURES.items())))
    np.testing.assert_array_equal(hashes(swapped), hashes(Schema([], FEATURES)))
    schema = Schema([], FEATURES)
    np.testing.assert_array_equal(hashes(schema, x=[0.0, -0.0]), hashes(schema, x=[-0.0, 0.0]))


def test_folds_are_of_equal_size():
    schema = Schema([], {"x": Numeric()})
    chunk = ColumnChunk(
        pa.table({"x": np.arange(50_000.0)}), Origin("", np.arange(50_000)), 0, Missing((), 0), {}
    )
    counts = np.bincount(fold_of(FoldColumns(schema).hashes(chunk.hashed, chunk.floats), 5))
    assert len(counts) == 5
    assert abs(counts - 10_000).max() < 500


def test_counts_measured_with_other_features_are_refused_for_training_rows() -> None:
    rows = {"user": [1, 2, 3, 4] * 30, "city": list(range(12)) * 10, "clicked": [0, 1] * 60}
    mean = satrap.Numeric(column="user", mean_label=satrap.schema.MeanLabel())
    features = {"city": satrap.Categorical(dim=2), "mean": mean}
    schema = satrap.Schema(["clicked"], features)
    measured = satrap.data.measure(schema, satrap.data.read(rows, schema).with_options(training=True))
    fewer = satrap.Schema(["clicked"], {"mean": measured.features["mean"]})
    next(satrap.data.read(rows, measured).with_options(training=True).batches())
    next(satrap.data.read(rows, fewer).batches())
    with pytest.raises(ConfigError, match="counts were measured with other features"):
        next(satrap.data.read(rows, fewer).with_options(training=True).batches())
