"""`BinaryMetrics` against scikit-learn; merging, states, masks and refusals."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import log_loss, roc_auc_score

from satrap.errors import ConfigError, DataError
from satrap.metrics import BinaryMetrics
from tests.support.examples import examples


def draw(seed, size, labels=1):
    random = np.random.default_rng(seed)
    truth = (random.random((size, labels)) < 0.3).astype(np.float32)
    scores = (1 / (1 + np.exp(-random.normal(truth - 1.5, 1)))).astype(np.float32)
    return {
        "labels": truth,
        "probabilities": scores,
        "mask": random.random((size, labels)) < 0.8,
        "weights": random.integers(0, 4, size).astype(np.float32),
        "groups": random.integers(0, 12, size).astype(np.uint64),
    }


def batches(samples, size):
    for start in range(0, len(samples["labels"]), size):
        yield {key: value[start : start + size] for key, value in samples.items()}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("limit", [10_000, 0])
def test_one_label_equals_scikit_learn(weighted, limit):
    samples = draw(0, 3000)
    y, p = samples["labels"][:, 0], samples["probabilities"][:, 0]
    w = samples["weights"] if weighted else None
    metrics = BinaryMetrics(["y"], exact_limit=limit)
    for part in batches(samples, 256):
        metrics.update(part["labels"], part["probabilities"], weights=part["weights"] if weighted else None)
    result = metrics.compute()
    base = np.average(y.astype(np.float64), weights=w)
    loss = log_loss(y, p.astype(np.float64), sample_weight=w)
    auc = roc_auc_score(y, p, sample_weight=w)
    assert result["auc"] == pytest.approx(auc, abs=result["auc_error_bound"] + 1e-12)
    assert (result["auc_error_bound"] == 0) == (limit > 0)
    assert result["auc_error_bound"] < 1e-4
    assert result["logloss"] == pytest.approx(loss, abs=1e-7)
    assert result["ne"] == pytest.approx(
        loss / -(base * np.log(base) + (1 - base) * np.log(1 - base)), abs=1e-6
    )
    assert result["calibration"] == pytest.approx(np.average(p, weights=w) / base, abs=1e-6)
    assert (result["samples"], result["positives"]) == (3000, y.sum())


def test_logloss_is_clipped_as_in_scikit_learn():
    y = np.array([1, 0, 1, 0], np.float32)
    p = np.array([0, 1, 1, 0], np.float32)
    metrics = BinaryMetrics(["y"])
    metrics.update(y, p)
    assert metrics.compute()["logloss"] == pytest.approx(log_loss(y, p), rel=1e-6)
    assert metrics.compute()["logloss"] < 8


def test_several_labels_with_masks_equal_separate_ones():
    samples = draw(1, 2000, labels=2)
    both = BinaryMetrics(["income", "married"], grouped=True)
    both.update(**samples)
    result = both.compute()
    for i, name in enumerate(both.names):
        known = samples["mask"][:, i]
        alone = BinaryMetrics([name], grouped=True)
        alone.update(
            samples["labels"][known, i],
            samples["probabilities"][known, i],
            weights=samples["weights"][known],
            groups=samples["groups"][known],
        )
        for key, value in alone.compute().items():
            assert result[f"{name}/{key}"] == pytest.approx(value, abs=1e-12)
    for key in ("auc", "logloss", "ne", "gauc"):
        assert result[key] == pytest.approx((result[f"income/{key}"] + result[f"married/{key}"]) / 2)
    assert result["income/samples"] == samples["mask"][:, 0].sum()


def assert_same(a, b):
    assert a.keys() == b.keys()
    for key, value in a.items():
        assert b[key] == pytest.approx(value, abs=1e-9, nan_ok=True), key


@settings(deadline=None, max_examples=examples(250))
@given(
    seed=st.integers(0, 1000),
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=6),
    cut=st.integers(0, 6),
    limit=st.sampled_from([0, 30, 100, 10_000]),
    grouped=st.booleans(),
)
def test_merging_equals_updating_with_everything(seed, sizes, cut, limit, grouped):
    def make():
        return BinaryMetrics(["a", "b"], exact_limit=limit, bins=1024, grouped=grouped)

    one, left, right = make(), make(), make()
    for i, size in enumerate(sizes):
        part = draw(seed + i, size, labels=2)
        one.update(**part)
        (left if i < cut else right).update(**part)
    before = right.compute()
    left.merge(right)
    assert_same(one.compute(), left.compute())
    assert_same(before, right.compute())


@pytest.mark.parametrize("limit", [0, 10_000])
def test_a_restored_state_goes_on_as_before(limit):
    samples = draw(3, 900, labels=2)
    first, second, third = batches(samples, 300)
    one = BinaryMetrics(["a", "b"], exact_limit=limit, grouped=True)
    other = BinaryMetrics(["a", "b"], exact_limit=limit, grouped=True)
    one.update(**first)
    other.update(**third)
    state = one.state()
    assert all(isinstance(array, np.ndarray) and array.dtype != object for array in state.values())
    other.restore(state)
    one.update(**second)
    other.update(**second)
    assert_same(one.compute(), other.compute())
    empty = BinaryMetrics(["a", "b"], exact_limit=limit, grouped=True)
    one.restore(empty.state())
    assert_same(one.compute(), empty.compute())


def test_reset_forgets_everything():
    metrics = BinaryMetrics(["y"])
    fresh = metrics.compute()
    metrics.update(np.array([0, 1]), np.array([0.2, 0.7]))
    assert metrics.compute()["auc"] == 1
    metrics.reset()
    assert_same(metrics.compute(), fresh)


def test_undefined_metrics_are_nan():
    metrics = BinaryMetrics(["y"], grouped=True)
    keys = ("auc", "auc_error_bound", "logloss", "ne", "calibration", "gauc")
    assert all(math.isnan(metrics.compute()[key]) for key in keys)
    metrics.update(np.zeros(3), np.full(3, 0.25), groups=np.zeros(3, np.uint64))
    result = metrics.compute()
    assert all(math.isnan(result[key]) for key in keys if key != "logloss")
    assert result["logloss"] == pytest.approx(-math.log(0.75))


def test_a_label_without_both_classes_does_not_spoil_the_mean():
    metrics = BinaryMetrics(["a", "b"])
    metrics.update(np.array([[0, 1], [1, 1]]), np.array([[0.1, 0.5], [0.9, 0.5]]))
    result = metrics.compute()
    assert math.isnan(result["b/auc"])
    assert result["auc"] == result["a/auc"] == 1


@pytest.mark.parametrize("limit", [10, 0])
def test_nan_predictions_give_nan_metrics(limit):
    metrics = BinaryMetrics(["y"], exact_limit=limit, grouped=True)
    predictions = np.array([0.1, np.nan, -np.nan, 0.9])
    metrics.update(np.array([0, 1, 0, 1]), predictions, groups=np.zeros(4, np.uint64))
    result = metrics.compute()
    assert all(math.isnan(result[key]) for key in ("auc", "logloss", "ne", "calibration", "gauc"))


@pytest.mark.parametrize("limit", [10, 0])
def test_minus_zero_is_zero(limit):
    metrics = BinaryMetrics(["y"], exact_limit=limit)
    metrics.update(np.array([0, 1, 1, 0]), np.array([0.0, -0.0, 0.5, -0.0]))
    assert metrics.compute()["auc"] == 0.75


def test_the_arrays_of_an_update_may_be_reused():
    labels, predictions = np.array([0.0, 1.0], np.float32), np.array([0.2, 0.7], np.float32)
    weights = np.ones(2, np.float32)
    metrics = BinaryMetrics(["y"])
    metrics.update(labels, predictions, weights=weights)
    labels[:], predictions[:], weights[:] = 0, 0, 0
    assert metrics.compute()["auc"] == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": np.array([0.0, 2.0])}, "labels must be 0 or 1"),
        ({"labels": np.array([0.0, np.nan])}, "labels must be 0 or 1"),
        ({"labels": np.zeros((2, 3))}, r"labels must be \[n, 1\]"),
        ({"labels": np.zeros(3)}, "labels, .* predictions"),
        ({"probabilities": np.array([0.5, 3.0])}, r"outside \[0, 1\]"),
        ({"probabilities": np.array([-0.5, 0.5])}, r"outside \[0, 1\]"),
        ({"weights": np.array([1.0, -1.0])}, "negative sample weights"),
        ({"weights": np.ones((2, 2))}, "labels, .* predictions"),
        ({"groups": None}, "needs groups"),
        ({"groups": np.zeros(3, np.uint64)}, "does not match labels"),
        ({"mask": np.ones((2, 2))}, r"mask must be \[n, 1\]"),
        ({"mask": np.ones(3)}, "does not match labels"),
    ],
)
def test_bad_input_is_refused_and_changes_nothing(change, message):
    metrics = BinaryMetrics(["y"], grouped=True)
    good = {"labels": np.array([0.0, 1.0]), "probabilities": np.array([0.2, 0.7]), "groups": np.zeros(2)}
    with pytest.raises(DataError, match=message):
        metrics.update(**(good | change))
    assert metrics.compute()["samples"] == 0
    metrics.update(**good)
    assert metrics.compute()["gauc"] == 1


@pytest.mark.parametrize(
    "arguments",
    [
        {"names": []},
        {"names": "y"},
        {"names": ["y", "y"]},
        {"names": ["y"], "exact_limit": -1},
        {"names": ["y"], "bins": 1000},
        {"names": ["y"], "bins": 32},
        {"names": ["y"], "bins": 2**30},
    ],
)
def test_impossible_arguments_are_refused(arguments):
    with pytest.raises(ConfigError):
        BinaryMetrics(**arguments)


def test_metrics_with_other_labels_or_arguments_do_not_merge():
    for other in (BinaryMetrics(["z"]), BinaryMetrics(["y"], bins=64), BinaryMetrics(["y"], grouped=True)):
        with pytest.raises(ConfigError, match="cannot merge"):
            BinaryMetrics(["y"]).merge(other)


def test_limits_are_as_the_documentation_says() -> None:
    BinaryMetrics(["y"]).merge(BinaryMetrics(["y"], exact_limit=4_000_000, bins=524_288, grouped=False))
