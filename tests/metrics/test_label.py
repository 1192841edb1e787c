"""What one label remembers beyond the limit: a histogram, and a share of the groups."""

import numpy as np
import pytest

from satrap.metrics.auc import grouped_auc
from satrap.metrics.label import LabelMetrics
from satrap.metrics.reservoir import mix


def columns(seed, size, groups=50):
    random = np.random.default_rng(seed)
    labels = random.random(size) < 0.4
    return (
        np.clip(random.normal(0.4 + 0.1 * labels, 0.2), 0, 1).astype(np.float32),
        labels,
        np.ones(size, np.float32),
        random.integers(0, groups, size).astype(np.uint64),
    )


def test_grouped_auc_beyond_the_limit_is_that_of_a_share_of_whole_groups():
    metrics = LabelMetrics(1000, 4096, True)
    everything = columns(0, 4000, groups=300)
    for start in range(0, 4000, 160):
        metrics.add(tuple(column[start : start + 160] for column in everything))
    result = metrics.compute()
    share = result["gauc_share"]
    assert share in (0.125, 0.25)
    kept = mix(everything[3]) < np.uint64(int(2**64 * share))
    assert kept.sum() <= 1000 < (mix(everything[3]) < np.uint64(int(2**65 * share))).sum()
    expected = grouped_auc(everything[3][kept], *(column[kept] for column in everything[:3]))
    assert (result["gauc"], result["gauc_groups"]) == (expected.value, expected.groups)


def test_memory_is_bounded_by_the_limit():
    for grouped in (False, True):
        metrics = LabelMetrics(500, 64, grouped)
        for seed in range(30):
            metrics.add(columns(seed, 100))
        assert len(metrics.samples()[0]) <= (500 if grouped else 0)
    assert metrics.compute()["samples"] == 3000


def test_one_group_larger_than_the_limit_is_not_kept():
    metrics = LabelMetrics(10, 64, True)
    metrics.add(columns(0, 100, groups=1))
    metrics.add((*columns(1, 20)[:3], np.full(20, 7, np.uint64)))
    assert len(metrics.samples()[0]) <= 10
    assert metrics.compute()["samples"] == 120


@pytest.mark.parametrize("limit", [0, 60, 10_000])
def test_any_order_of_updates_keeps_the_same_groups(limit):
    parts = [columns(seed, 40) for seed in range(6)]
    one, other = (LabelMetrics(limit, 64, True) for _ in range(2))
    for part in parts:
        one.add(part)
    for part in reversed(parts):
        other.add(part)
    assert one.compute()["gauc_share"] == other.compute()["gauc_share"]
    assert np.array_equal(np.sort(one.samples()[3]), np.sort(other.samples()[3]))
