"""Metrics of the user's own against scikit-learn, over batches, workers and limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torchmetrics
from sklearn.metrics import average_precision_score, ndcg_score, recall_score
from torchmetrics.classification import (
    BinaryAveragePrecision,
    BinaryRecall,
    MulticlassAccuracy,
)

from satrap.errors import ConfigError, TrainingError
from satrap.metrics import Metrics, OwnMetrics
from satrap.schema import Label
from satrap.settings.training import higher_is_better

Array = Any
CLICK = Label(name="clicked")


def drawn(n: int = 1000) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {
        "labels": rng.integers(0, 2, (n, 1)).astype(np.float32),
        "predictions": rng.random((n, 1)).astype(np.float32),
        "weights": rng.integers(1, 4, n).astype(np.float32),
        "groups": rng.integers(0, 40, n).astype(np.uint64),
    }


def rows(given: dict[str, Array], part: slice) -> dict[str, Array]:
    return {name: column[part] for name, column in given.items()}


def ndcg(labels: Array, predictions: Array, groups: Array, k: int = 5) -> float:
    order = np.lexsort((-predictions, groups))
    labels, groups = labels[order], groups[order]
    parts = np.split(labels, np.flatnonzero(np.diff(groups)) + 1)
    gains = 1 / np.log2(np.arange(2, k + 2))
    found = [part[:k] @ gains[: len(part)] / gains[: min(int(part.sum()), k)].sum() for part in parts]
    return float(np.mean(found))


def precision(labels: Array, predictions: Array, weights: Array) -> Array:
    return np.array(average_precision_score(labels, predictions, sample_weight=weights))


def test_metrics_over_batches_are_those_of_scikit_learn() -> None:
    given = drawn()
    metrics = Metrics([CLICK], grouped=True, own=[ndcg, precision])
    for start in range(0, 1000, 128):
        metrics.update(**rows(given, slice(start, start + 128)))
    found = metrics.compute()
    y, p, g = given["labels"][:, 0], given["predictions"][:, 0], given["groups"]
    each = [ndcg_score([y[g == one]], [p[g == one]], k=5) for one in np.unique(g)]
    assert found["ndcg"] == pytest.approx(np.mean(each))
    assert found["precision"] == pytest.approx(average_precision_score(y, p, sample_weight=given["weights"]))
    assert found["own_share"] == 1.0
    metrics.reset()
    metrics.update(**rows(given, slice(0, 500)))
    assert metrics.compute()["ndcg"] != found["ndcg"]


def test_workers_add_up_their_samples() -> None:
    given = drawn()
    whole = Metrics([CLICK], grouped=True, own=[ndcg, precision])
    whole.update(**given)
    sums = whole.empty()
    for part in (slice(0, 300), slice(300, 1000)):
        metrics, sent = whole.empty(), whole.empty()
        metrics.update(**rows(given, part))
        sent.restore(metrics.state())
        sums.merge(sent)
    assert sums.compute() == pytest.approx(whole.compute())


def count(labels: Array, groups: Array) -> int:
    return len(labels)


def groups_that_lost_samples(groups: Array) -> int:
    own, sizes = np.unique(groups, return_counts=True)
    full = dict(zip(*np.unique(drawn()["groups"], return_counts=True), strict=True))
    return sum(int(full[one] != size) for one, size in zip(own, sizes, strict=True))


@pytest.mark.parametrize("parts", [1, 4])
def test_beyond_the_limit_whole_groups_are_left_out(parts: int) -> None:
    given = drawn()
    sums = Metrics([CLICK], grouped=True, exact_limit=300, own=[count, groups_that_lost_samples])
    for start in range(0, 1000, 1000 // parts):
        metrics = sums.empty()
        metrics.update(**rows(given, slice(start, start + 1000 // parts)))
        sums.merge(metrics)
    found = sums.compute()
    assert 0 < found["count"] <= 300
    assert found["groups_that_lost_samples"] == 0
    assert found["own_share"] in (0.25, 0.125)


def mean_prediction(predictions: Array) -> Array:
    return predictions.mean()


def kept(predictions: Array) -> int:
    return len(predictions)


def test_beyond_the_limit_single_samples_are_left_out_without_groups() -> None:
    metrics = Metrics([CLICK], exact_limit=2000, own=[mean_prediction, kept])
    rng = np.random.default_rng(1)
    for _ in range(50):
        metrics.update(rng.integers(0, 2, (200, 1)), rng.random((200, 1), np.float32))
    found = metrics.compute()
    assert found["own_share"] == 0.125
    assert found["kept"] == pytest.approx(1250, rel=0.1)
    assert found["mean_prediction"] == pytest.approx(0.5, abs=0.03)


def test_unknown_labels() -> None:
    seen: list[tuple[Array, Array, Array]] = []

    def look(labels: Array, predictions: Array, weights: Array) -> float:
        seen.append((labels, predictions, weights))
        return 0.0

    labels = np.array([[1, 2], [0, 3], [1, 4]], np.float32)
    predictions = np.arange(9, dtype=np.float32).reshape(3, 3) / 9
    mask = np.array([[True, False], [False, False], [True, True]])
    classes = Label(name="color", kind="multiclass", classes=5)
    two = OwnMetrics([look], (2, 3), grouped=False, limit=10)
    two.update(labels, predictions, mask, np.ones(3, np.float32), None)
    two.compute()
    np.testing.assert_array_equal(seen[0][0], np.array([[1, np.nan], [1, 4]], np.float32))
    np.testing.assert_array_equal(seen[0][1], predictions[[0, 2]])
    one = Metrics([classes], own=[look])
    given = np.full((3, 5), 0.2, np.float32)
    one.update(labels[:, 1:], given, mask=mask[:, 1:], weights=np.array([1, 2, 3], np.float32))
    one.compute()
    np.testing.assert_array_equal(seen[1][0], [4])
    assert seen[1][1].shape == (1, 5)
    np.testing.assert_array_equal(seen[1][2], [3])


def taken(labels: Array) -> float:
    return 0.0


taken.__name__ = "auc"


def reserved(labels: Array) -> float:
    return 0.0


reserved.__name__ = "step"


@pytest.mark.parametrize(
    ("functions", "message"),
    [
        ([lambda labels: 0.0], "<lambda> cannot be a metric"),
        ([7], r"own\[0\] must be a function, got 7"),
        ([reserved], "step cannot be a metric"),
        ([kept, kept], "two metrics have the same name"),
        ([taken], "auc is the name of a built-in metric"),
        ([average_precision_score], "average_precision_score has an unknown argument 'y_true'"),
        ([count], "count takes groups, but the schema has no group column"),
    ],
)
def test_what_cannot_be_a_metric_is_refused(functions: list[Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Metrics([CLICK], own=functions)


def arrays(labels: Array) -> Array:
    return labels


def texts(labels: Array) -> str:
    return "good"


@pytest.mark.parametrize("function", [arrays, texts])
def test_what_is_no_number_is_told_with_its_place(function: Callable[..., Any]) -> None:
    metrics = Metrics([CLICK], own=[function])
    metrics.update(np.ones((3, 1)), np.ones((3, 1), np.float32))
    with pytest.raises(TrainingError, match=f"the metric {function.__name__} returned") as caught:
        metrics.compute()
    assert caught.value.where == f"{__file__}:{function.__code__.co_firstlineno}"


def test_objects_and_classes_of_torchmetrics() -> None:
    given = drawn()
    low, high = BinaryRecall(threshold=0.2), BinaryRecall(threshold=0.8)
    low.__name__ = "recall_at_low"
    metrics = Metrics([CLICK], own=[low, high, BinaryAveragePrecision])
    parts = [Metrics([CLICK], own=[low, high, BinaryAveragePrecision]) for _ in range(2)]
    for start in range(0, 1000, 128):
        metrics.update(**rows(given, slice(start, start + 128)))
        parts[start // 128 % 2].update(**rows(given, slice(start, start + 128)))
    found = metrics.compute()
    y, p = given["labels"][:, 0], given["predictions"][:, 0]
    assert found["recall_at_low"] == pytest.approx(recall_score(y, p > 0.2))
    assert found["BinaryRecall"] == pytest.approx(recall_score(y, p > 0.8))
    assert found["BinaryAveragePrecision"] == pytest.approx(average_precision_score(y, p), abs=1e-6)
    parts[0].merge(parts[1])
    assert parts[0].compute() == pytest.approx(found)
    metrics.reset()
    metrics.update(**rows(given, slice(0, 500)))
    assert metrics.compute()["BinaryRecall"] == pytest.approx(recall_score(y[:500], p[:500] > 0.8))


def test_numbers_and_classes_of_torchmetrics() -> None:
    rng = np.random.default_rng(1)
    values, guesses = (rng.normal(size=(300, 1)).astype(np.float32) for _ in range(2))
    number = OwnMetrics([torchmetrics.MeanAbsoluteError], (1, 1), grouped=False, limit=1000)
    number.update(values, guesses, None, np.ones(300, np.float32), None)
    assert number.compute()["MeanAbsoluteError"] == pytest.approx(np.abs(values - guesses).mean())
    classes, shares = rng.integers(0, 3, (300, 1)).astype(np.float32), rng.random((300, 3)).astype(np.float32)
    accuracy = MulticlassAccuracy(num_classes=3, average="micro")
    one = OwnMetrics([accuracy], (1, 3), grouped=False, limit=1000)
    one.update(classes, shares, None, np.ones(300, np.float32), None)
    assert one.compute()["MulticlassAccuracy"] == pytest.approx((shares.argmax(1) == classes[:, 0]).mean())
    assert accuracy.update_count == 0  # the user's object is not touched


def test_torchmetrics_say_which_direction_is_better() -> None:
    assert higher_is_better(BinaryRecall)
    assert not higher_is_better(torchmetrics.MeanAbsoluteError())
    assert higher_is_better(torchmetrics.MeanMetric())  # it does not know
    with pytest.raises(
        ConfigError,
        match=r"MulticlassAccuracy cannot be constructed without arguments(.|\n)*create an object",
    ):
        Metrics([CLICK], own=[MulticlassAccuracy])
    with pytest.raises(ConfigError, match="two metrics have the same name"):
        Metrics([CLICK], own=[BinaryRecall(0.2), BinaryRecall(0.3)])
