"""`Metrics` of labels of several kinds against each label's own metrics."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from satrap.errors import DataError
from satrap.metrics import (
    BinaryMetrics,
    ClassMetrics,
    GroupRankingMetrics,
    Metrics,
    RegressionMetrics,
    criterion,
)
from satrap.schema import Label
from satrap.settings.ranking import Ranking

BINARY, OTHER = Label(name="liked"), Label(name="bought")
NUMBER = Label(name="price", kind="regression", mean=5.0, std=2.0)
CLASSES = Label(name="color", kind="multiclass", classes=("red", "green", "blue"))
MIXED = (BINARY, CLASSES, NUMBER)


def drawn(rows: slice = slice(None)) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    labels = np.stack([rng.integers(0, 2, 500), rng.integers(0, 3, 500), rng.normal(5, 2, 500)], axis=1)
    probabilities = rng.dirichlet(np.ones(3), 500)
    predictions = np.column_stack([rng.random(500), probabilities, rng.normal(5, 2, 500)])
    parts = {
        "labels": labels.astype(np.float32),
        "predictions": predictions.astype(np.float32),
        "mask": rng.random((500, 3)) < 0.7,
        "weights": rng.integers(0, 4, 500).astype(np.float32),
        "groups": rng.integers(0, 9, 500).astype(np.uint64),
    }
    return {name: part[rows] for name, part in parts.items()}


def test_each_label_has_the_metrics_of_its_kind_over_its_known_rows() -> None:
    given = drawn()
    metrics = Metrics(MIXED, grouped=True)
    metrics.update(**given)
    found = metrics.compute()
    labels, predictions, weights = given["labels"], given["predictions"], given["weights"]
    binary, classes, number = (
        BinaryMetrics(["liked"], grouped=True),
        ClassMetrics(),
        RegressionMetrics(NUMBER),
    )
    k = given["mask"][:, 0]
    binary.update(labels[k, 0], predictions[k, 0], weights=weights[k], groups=given["groups"][k])
    k = given["mask"][:, 1]
    classes.update(labels[k, 1], predictions[k, 1:4], weights[k])
    k = given["mask"][:, 2]
    number.update(labels[k, 2], predictions[k, 4], weights[k])
    alone = {"liked": binary, "color": classes, "price": number}
    for name, part in alone.items():
        for key, value in part.compute().items():
            assert found[f"{name}/{key}"] == pytest.approx(value, nan_ok=True)
    assert found["auc"] == found["liked/auc"]
    assert found["accuracy"] == found["color/accuracy"]
    assert found["logloss"] == pytest.approx((found["liked/logloss"] + found["color/logloss"]) / 2)
    assert found["loss"] == pytest.approx(
        (found["liked/logloss"] + found["color/logloss"] + found["price/loss"]) / 3
    )
    assert "rmse" not in found  # a mean over different units


def test_shares_merged_are_the_whole_and_a_state_keeps_everything() -> None:
    whole, merged = Metrics(MIXED), Metrics(MIXED).empty()
    whole.update(**drawn())
    for part in range(3):
        own, other = Metrics(MIXED), Metrics(MIXED)
        own.update(**drawn(slice(part, None, 3)))
        other.restore(own.state())
        merged.merge(other)
    assert merged.compute() == pytest.approx(whole.compute(), rel=1e-12)
    merged.reset()
    assert merged.compute()["price/samples"] == 0


def test_binary_labels_alone_have_the_metrics_of_binary_metrics() -> None:
    given = drawn()
    given |= {"labels": given["labels"][:, [0, 0]], "mask": given["mask"][:, :2]}
    given["predictions"] = given["predictions"][:, [0, 1]]
    metrics, expected = (
        Metrics([BINARY, OTHER], grouped=True),
        BinaryMetrics(["liked", "bought"], grouped=True),
    )
    metrics.update(**given)
    given["probabilities"] = given.pop("predictions")
    expected.update(**given)
    assert metrics.compute() == expected.compute()
    assert list(metrics.compute()) == list(expected.compute())
    assert metrics.state().keys() == expected.state().keys()


@pytest.mark.parametrize(
    ("labels", "name"),
    [
        ([BINARY, OTHER], "auc"),
        ([CLASSES], "logloss"),
        ([NUMBER], "loss"),
        ([CLASSES, NUMBER], "loss"),
        ([BINARY, CLASSES], "loss"),
    ],
)
def test_every_schema_has_one_metric_that_says_which_model_is_better(labels: list[Label], name: str) -> None:
    assert criterion(labels) == name
    metrics = Metrics(labels)
    outputs = sum(label.outputs for label in labels)
    rows = np.tile(np.array([[0.0], [1.0]], np.float32), (4, 1))
    metrics.update(np.repeat(rows, len(labels), 1), np.full((8, outputs), 1 / outputs, np.float32))
    assert np.isfinite(metrics.compute()[name])


def test_binary_labels_have_the_limits_of_binary_metrics() -> None:
    [part] = Metrics([BINARY])._parts.values()
    BinaryMetrics(["liked"]).merge(part)  # which refuses others


def test_ranking_metrics_are_of_the_known_rows_of_each_binary_label_over_workers() -> None:
    given, ranking = drawn(), Ranking(at=(3, 5))
    labels = (BINARY, CLASSES, OTHER)
    given["predictions"] = given["predictions"][:, [0, 1, 2, 3, 1]]
    given["labels"][:, 2] = given["labels"][::-1, 0]
    metrics = Metrics(labels, grouped=True, ranking=ranking)
    for rows in (slice(0, 200), slice(200, 500)):
        worker, sent = metrics.empty(), metrics.empty()
        worker.update(**{name: part[rows] for name, part in given.items()})
        sent.restore(worker.state())
        metrics.merge(sent)
    found = metrics.compute()
    for name, column, output in (("liked", 0, 0), ("bought", 2, 4)):
        alone, known = GroupRankingMetrics((3, 5)), given["mask"][:, column]
        scores = given["predictions"][known, output]
        alone.update(given["groups"][known], scores, given["labels"][known, column] == 1)
        expected = alone.compute()
        assert {key: found[f"{name}/{key}"] for key in expected} == expected
    assert found["ndcg@5"] == pytest.approx((found["liked/ndcg@5"] + found["bought/ndcg@5"]) / 2)
    assert "color/ndcg@5" not in found
    metrics.reset()
    assert metrics.compute()["liked/queries"] == 0


def test_ranking_metrics_need_groups() -> None:
    metrics = Metrics([BINARY], ranking=Ranking(at=(3,)))
    with pytest.raises(DataError, match="needs groups"):
        metrics.update(np.zeros((2, 1)), np.zeros((2, 1), np.float32))
