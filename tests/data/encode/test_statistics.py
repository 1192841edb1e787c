import json
import pickle
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import MinMaxScaler, QuantileTransformer

from satrap import Categorical, Label, Numeric, Schema
from satrap.data import RowSplit, measure, read
from satrap.data.encode.encoder import MISSING, ColumnChunk, Missing
from satrap.data.encode.folds import FoldColumns, fold_of
from satrap.data.encode.statistics import BLOCK, Moments, NumberSample, measured_as
from satrap.data.source import Origin
from satrap.errors import ConfigError
from satrap.schema import MeanLabel
from tests.data.helpers_data import error_of
from tests.support.examples import examples


def test_mean_and_deviation_at_that_step_of_the_chain():
    rng = np.random.default_rng(0)
    x = np.where(rng.random(30_000) < 0.2, np.nan, rng.lognormal(3, 1, 30_000))
    big = 1.6e9 + rng.normal(size=30_000)
    schema = Schema(
        ["y"],
        {
            "x": Numeric(transform=["log1p", "standardize", {"clip": [-3, 3]}]),
            "big": Numeric(transform="standardize"),
            "plain": Numeric(column="x"),
        },
    )
    rows = RowSplit(10, (0, 1, 2))
    dataset = read({"x": x, "big": big}, schema.without_labels(), rows=rows, shuffle=True)
    with pytest.raises(ConfigError, match="measure"):
        list(dataset)
    measured = measure(schema, dataset)
    kept = np.arange(30_000) % 10 < 3
    logs = np.log1p(x[kept & ~np.isnan(x)])
    assert measured.numeric["x"].transform[1] == {
        "standardize": {"mean": pytest.approx(logs.mean()), "std": pytest.approx(logs.std())}
    }
    assert measured.numeric["big"].transform[0]["standardize"]["std"] == pytest.approx(
        big[kept].std(), rel=1e-6
    )
    assert measured.numeric["plain"] == schema.numeric["plain"]
    assert Schema.from_dict(measured.to_dict()) == measured
    assert measure(measured, dataset) is measured
    batches = list(dataset.with_options(schema=measured.without_labels()))
    z = np.concatenate([b.numeric[:, 1] for b in batches])
    assert abs(z.mean()) < 1e-3
    assert z.std() == pytest.approx(1, rel=1e-3)


def test_the_range_is_that_of_scikit_learn():
    x = np.random.default_rng(1).lognormal(size=(20_000, 1))
    schema = Schema([], {"x": Numeric(transform=["sqrt", "minmax"])})
    dataset = read({"x": x[:, 0]}, schema)
    found = np.concatenate([b.numeric for b in dataset.with_options(schema=measure(schema, dataset))])
    np.testing.assert_allclose(found, MinMaxScaler().fit_transform(np.sqrt(x)), atol=1e-6)


def test_ranks_are_those_of_scikit_learn():
    rng = np.random.default_rng(1)
    x = np.where(rng.random(20_000) < 0.3, 2.0, rng.lognormal(size=20_000)).reshape(-1, 1)  # many are equal
    schema = Schema([], {"x": Numeric(transform=["log1p", {"quantiles": 40}], missing=0.5)})
    dataset = read({"x": x[:, 0]}, schema)
    with pytest.raises(ConfigError, match="quantiles has no values yet"):
        list(dataset)
    measured = measure(schema, dataset)
    assert Schema.from_dict(measured.to_dict()) == measured
    oracle = QuantileTransformer(n_quantiles=40, subsample=None).fit(np.log1p(x))
    probe = np.array([[-3.0], [1e9], [np.nan], *np.linspace(0, 9, 200).reshape(-1, 1)])
    found = np.concatenate([b.numeric for b in read({"x": probe[:, 0]}, measured)])
    expected = np.nan_to_num(oracle.transform(np.log1p(np.maximum(probe, 0))), nan=0.5)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_sample_of_numbers_is_the_same_in_any_pieces_and_fair():
    numbers = np.random.default_rng(1).normal(size=50_000)
    numbers[::7] = np.nan
    found = []
    for cuts in ([], [10, 11, 30_000], list(range(0, 50_000, 777))):
        sample = NumberSample(5_000)
        for piece in np.split(numbers, cuts):
            sample.add(piece)
        found.append(np.sort(sample.numbers()))
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])
    assert len(found[0]) == 5_000
    every = np.quantile(numbers[~np.isnan(numbers)], [0.1, 0.5, 0.9])
    np.testing.assert_allclose(np.quantile(found[0], [0.1, 0.5, 0.9]), every, atol=0.06)


def test_no_more_than_200000_numbers_are_sampled():
    sample = NumberSample()
    for added, kept in ((199_999, 199_999), (2, 200_000), (1, 200_000)):
        sample.add(np.append(np.zeros(added), np.nan))
        assert len(sample.numbers()) == kept
    assert sample.count == 200_002


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK])
def test_moments_are_the_same_in_any_pieces(size):
    numbers = 1e9 + np.random.default_rng(size).normal(size=size)
    found = []
    for cuts in ([], [1, 2, BLOCK, BLOCK + 1, 2 * BLOCK], list(range(0, size, 7001))):
        moments = Moments()
        for piece in np.split(numbers, cuts):
            moments.add(np.append(piece, np.nan))
        moments.end()
        found.append((moments.count, moments.statistics()))
    assert found[0] == found[1] == found[2]
    count, statistics = found[0]
    if not size:
        assert (count, statistics) == (0, {"mean": 0.0, "std": 0.0, "min": np.inf, "max": -np.inf})
        return
    assert (count, statistics["min"], statistics["max"]) == (size, numbers.min(), numbers.max())
    assert statistics["mean"] == pytest.approx(numbers.mean(), rel=1e-15)
    assert statistics["std"] == pytest.approx(numbers.std(), abs=1e-6)


def test_nothing_to_measure():
    schema = Schema([], {"x": Numeric(transform="standardize")})
    dataset = read({"x": [None, float("nan")]}, schema)
    assert "no numbers to measure" in error_of(lambda: measure(schema, dataset)).what


def test_labels_get_the_mean_and_deviation_of_their_known_rows():
    rng = np.random.default_rng(0)
    price = rng.normal(1e5, 3e4, 20_000)
    known = rng.random(20_000) < 0.5
    count = rng.poisson(4, 20_000)
    labels = [
        "y",
        Label(name="price", kind="regression", mask="known"),
        Label(name="n", column="count", kind="regression", loss="poisson"),
        Label(name="given", column="price", kind="regression", mean=0.0, std=5.0, mask="known"),
        Label(name="half", column="price", kind="regression", std=5.0, mask="known"),
    ]
    schema = Schema(labels, {"x": Numeric()})
    price[~known] = np.nan
    columns = {"y": known, "price": price, "known": known, "count": count, "x": price}
    dataset = read(columns, schema, rows=RowSplit(10, (0, 1, 2)), shuffle=True)
    measured = measure(schema, dataset)
    kept = np.arange(20_000) % 10 < 3
    own = price[kept & known]
    assert measured.labels[0] == schema.labels[0]
    assert measured.labels[1].mean == pytest.approx(own.mean(), rel=1e-6)
    assert measured.labels[1].std == pytest.approx(own.std(), rel=1e-6)
    assert (measured.labels[2].mean, measured.labels[2].std) == (pytest.approx(count[kept].mean()), None)
    assert measured.labels[3] == schema.labels[3]
    assert (measured.labels[4].mean, measured.labels[4].std) == (measured.labels[1].mean, 5.0)
    assert measure(measured, dataset) is measured
    assert Schema.from_dict(measured.to_dict()) == measured


def test_a_label_that_never_changes_is_refused():
    schema = Schema([Label(name="price", kind="regression")], {"x": Numeric()})
    dataset = read({"x": [1, 2], "price": [3, 3]}, schema)
    assert (
        "label 'price' has the same value in all training rows"
        in error_of(lambda: measure(schema, dataset)).what
    )


COUNTED = {
    "user": Categorical(dim=4),
    "x": Numeric(),
    "n": Numeric(column="user", count="log1p", missing=-1.0),
    "m": Numeric(column="user", mean_label=MeanLabel(folds=4, smoothing=3)),
}


def counted_rows(rows: int = 4000) -> pd.DataFrame:
    rng = np.random.default_rng(7)
    user = rng.integers(0, 60, rows)
    y = (rng.random(rows) < 0.1 + 0.8 * (user % 5) / 5).astype(int)
    table = pd.DataFrame({"user": user.astype(str), "x": rng.normal(size=rows).round(3), "y": y})
    table.loc[rng.random(rows) < 0.05, "user"] = ""
    return table


def in_order(dataset) -> np.ndarray:
    return np.concatenate([batch.numeric for batch in dataset.with_options(shuffle=False)])


def test_counts_and_means_are_those_of_pandas_out_of_fold():
    rows, schema = counted_rows(), Schema(["y"], COUNTED)
    train = read(rows, schema, rows=RowSplit(10, tuple(range(9))))
    with pytest.raises(ConfigError, match="has no counts yet"):
        list(train)
    measured = measure(schema, train)
    assert Schema.from_dict(json.loads(json.dumps(measured.to_dict()))) == measured
    assert pickle.loads(pickle.dumps(measured)) == measured
    fit = rows[np.arange(len(rows)) % 10 < 9].copy()
    columns = pa.table(dict(fit)), Origin("", np.arange(len(fit))), 0, Missing(MISSING, 0), {}
    chunk = ColumnChunk(*columns)
    fit["fold"] = fold_of(FoldColumns(schema).hashes(chunk.hashed, chunk.floats), 4)
    assert np.bincount(fit["fold"], minlength=4).min() > len(fit) / 5
    mean = fit.loc[fit["user"] != "", "y"].mean()

    def odds(known: pd.DataFrame, users: pd.Series) -> np.ndarray:
        by_user = known.groupby("user")["y"].agg(["sum", "size"]).reindex(users, fill_value=0)
        share = (by_user["sum"] + 3 * mean) / (by_user["size"] + 3)
        return np.where(users == "", 0.0, np.log(share / (1 - share)))

    sizes = fit.groupby("user").size()
    for part, training in ((fit, True), (rows[np.arange(len(rows)) % 10 == 9], False)):
        found = in_order(read(part, measured).with_options(training=training))
        count = np.log1p(sizes.reindex(part["user"], fill_value=0).to_numpy())
        np.testing.assert_allclose(found[:, 1], np.where(part["user"] == "", -1.0, count), rtol=1e-6)
        expected = odds(fit, part["user"])
        for fold in range(4) if training else ():
            left_out = (part["fold"] == fold).to_numpy()
            expected[left_out] = odds(fit[fit["fold"] != fold], part["user"][left_out])
        np.testing.assert_allclose(found[:, 2], expected, atol=1e-6)


def test_a_mean_tells_nothing_where_the_label_is_noise():
    """Means that held a row's own label would predict it: with 2 rows per user, AUC far above 0.5."""
    rng = np.random.default_rng(1)
    rows = pd.DataFrame({"user": rng.permutation(20_000) // 2, "x": rng.normal(size=20_000)})
    rows["y"] = rng.integers(0, 2, len(rows))
    schema = Schema(["y"], COUNTED)
    measured = measure(schema, train := read(rows, schema))
    own = in_order(read(rows, measured))[:, 2]
    apart = in_order(train.with_options(schema=measured, training=True))[:, 2]
    assert roc_auc_score(rows["y"], own) > 0.75
    assert roc_auc_score(rows["y"], apart) < 0.52


@settings(max_examples=examples(10), deadline=None)
@given(st.permutations(range(6)), st.integers(1, 3), st.booleans())
def test_folds_survive_order_and_shares(order, workers, swapped):
    rows = counted_rows(600)
    schema = Schema(["y"], dict(sorted(COUNTED.items(), reverse=swapped)))
    parts = np.array_split(np.arange(600), 6)
    mixed = rows.iloc[np.concatenate([parts[i] for i in order])]
    measured = measure(schema, read(mixed, schema))
    assert (
        measured.numeric["m"].counts
        == measure(Schema(["y"], COUNTED), read(rows, schema)).numeric["m"].counts
    )
    found = []
    for worker in range(workers):
        share = read(mixed, measured, shuffle=True, batch_size=50).with_options(
            worker=worker, workers=workers, training=True
        )
        found += [
            batch.numeric[:, [measured.numeric_columns["x"].start, measured.numeric_columns["m"].start]]
            for batch in share
        ]
    whole = in_order(read(rows, measured).with_options(training=True))
    places = [measured.numeric_columns[name].start for name in ("x", "m")]
    assert sorted(map(tuple, np.concatenate(found))) == sorted(map(tuple, whole[:, places]))


def test_steps_after_a_mean_are_measured_out_of_fold():
    rows = counted_rows()
    schema = Schema(["y"], COUNTED | {"m": replace(COUNTED["m"], transform="standardize")})
    measured = measure(schema, read(rows, schema))
    found = in_order(read(rows, measured).with_options(training=True))[:, 2][rows["user"] != ""]
    assert abs(found.mean()) < 1e-3
    assert found.std() == pytest.approx(1, rel=1e-3)


def test_counts_are_taken_over_where_features_agree():
    rows, schema = counted_rows(), Schema(["y"], COUNTED)
    measured = measure(schema, read(rows, schema))
    assert measured_as(schema, measured) == measured
    for changed in (
        {"column": "x"},
        {"count": None, "mean_label": MeanLabel()},
        {"transform": "standardize"},
    ):
        other = schema.replace({"n": replace(COUNTED["n"], **changed)})
        assert measured_as(other, measured).numeric["n"].counts is None


@pytest.mark.parametrize(
    ("changed", "kept"),
    [
        ({"salt": 7}, {"m": False, "n": False}),
        ({"labels": ["z"]}, {"m": False, "n": True}),
        ({"labels": [Label(name="y", mask="known")]}, {"m": False, "n": True}),
        ({"features": COUNTED | {"more": Numeric()}}, {"m": False, "n": True}),  # other folds
        ({"labels": ["y", "z"]}, {"m": True, "n": True}),
    ],
)
def test_counts_of_other_ids_labels_or_folds_are_not_taken_over(changed, kept):
    rows, settings = counted_rows(), {"labels": ["y"], "features": COUNTED, "salt": 0}
    schema = Schema(**settings)
    found = measured_as(Schema(**settings | changed), measure(schema, read(rows, schema)))
    assert {name: found.numeric[name].counts is not None for name in kept} == kept


def test_the_mean_of_a_label_of_another_column_is_not_taken_over():
    known = Schema([Label(name="y", kind="regression", mean=3.0, std=2.0)], {"x": Numeric()})
    for column, mean in ((None, 3.0), ("y", 3.0), ("z", None)):
        schema = Schema([Label(name="y", kind="regression", column=column)], {"x": Numeric()})
        assert measured_as(schema, known).labels[0].mean == mean


def test_labels_that_are_unknown_do_not_count():
    rows = counted_rows().assign(known=lambda t: t.index % 2)
    rows.loc[rows["known"] == 0, "y"] = 1 - rows["y"]
    schema = Schema([Label(name="y", mask="known")], COUNTED)
    counts = measure(schema, read(rows, schema)).numeric["m"].counts
    known = rows[(rows["known"] == 1) & (rows["user"] != "")]
    assert (counts.rows.sum(), counts.ones.sum()) == (len(known), known["y"].sum())
    every = measure(schema, read(rows, schema)).numeric["n"].counts
    assert every.rows.sum() == (rows["user"] != "").sum()


def test_a_mean_of_the_second_label():
    rows = counted_rows().assign(z=lambda t: 1 - t["y"])
    schema = Schema(["y", "z"], COUNTED | {"m": replace(COUNTED["m"], mean_label=MeanLabel(label="z"))})
    counts = measure(schema, read(rows, schema)).numeric["m"].counts
    there = rows[rows["user"] != ""]
    assert counts.ones.sum() == there["z"].sum()
