"""An implicit label has no metrics but those of rankings."""

from __future__ import annotations

import numpy as np

import satrap
from satrap.metrics import Metrics
from satrap.metrics.implicit import ImplicitMetrics
from satrap.settings.ranking import Ranking


def test_samples_are_counted_merged_and_restored() -> None:
    one, other = ImplicitMetrics(), ImplicitMetrics()
    one.update(np.ones(3), np.zeros((3, 1)), np.ones(3))
    other.restore(one.state())
    other.merge(one)
    assert other.compute() == {"samples": 6}
    other.reset()
    assert other.compute() == {"samples": 0}


def test_an_implicit_label_has_ranking_metrics_only() -> None:
    label = satrap.Label(name="seen", implicit=True)
    metrics = Metrics([label], ranking=Ranking((2,), among="items"))
    metrics.update(np.ones((2, 1)), np.zeros((2, 1)))
    metrics.rank(*(np.array(x, np.uint64) for x in ([1, 2], [7, 8])), np.array([1, 3]), np.array([1, 1]))
    values = metrics.compute()
    assert values["samples"] == 2
    assert values["recall@2"] == 0.5
    assert not {"auc", "logloss"} & values.keys()
