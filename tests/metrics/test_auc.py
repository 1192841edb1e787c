"""AUC from sorting, groups and histograms against scikit-learn and the definition over pairs."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from satrap.metrics.auc import add_to_histogram, binned_auc, exact_auc, grouped_auc, new_histogram
from tests.support.examples import examples


def draw(seed, size, *, ties=False, weighted=False):
    random = np.random.default_rng(seed)
    labels = random.random(size) < 0.3
    predictions = 1 / (1 + np.exp(-random.normal(labels - 2.0, 1.5)))
    if ties:
        predictions = np.round(predictions, 1)
    weights = random.exponential(size=size) if weighted else np.ones(size)
    return predictions.astype(np.float32), labels, weights.astype(np.float32)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_exact_equals_scikit_learn(ties, weighted):
    for seed in range(20):
        p, y, w = draw(seed, 300, ties=ties, weighted=weighted)
        assert exact_auc(p, y, w) == pytest.approx(roc_auc_score(y, p, sample_weight=w), abs=1e-12)


def test_exact_equals_the_definition_over_pairs():
    p, y, w = draw(5, 60, ties=True, weighted=True)
    wins = (p[y][:, None] > p[~y]) + 0.5 * (p[y][:, None] == p[~y])
    pairs = w[y].astype(np.float64)[:, None] * w[~y]
    assert exact_auc(p, y, w) == pytest.approx((wins * pairs).sum() / pairs.sum(), abs=1e-12)


def test_one_class_or_no_sample_is_undefined():
    one = np.ones(3, np.float32)
    for labels in (np.ones(3, np.bool_), np.zeros(3, np.bool_)):
        assert math.isnan(exact_auc(one, labels, one))
    empty = np.empty(0, np.float32)
    assert math.isnan(exact_auc(empty, np.empty(0, np.bool_), empty))
    assert all(math.isnan(value) for value in binned_auc(new_histogram(64)))
    y = np.array([True, False, False])
    assert math.isnan(exact_auc(one, y, np.array([0, 1, 1], np.float32)))


@pytest.mark.parametrize("weighted", [False, True])
def test_grouped_equals_a_loop_over_groups(weighted):
    p, y, w = draw(1, 800, ties=True, weighted=weighted)
    random = np.random.default_rng(2)
    groups = random.choice(random.integers(0, 2**64, 160, dtype=np.uint64), 800)
    total = weight = 0.0
    used = skipped = 0
    for group in np.unique(groups):
        own = groups == group
        if y[own].min() == y[own].max():
            skipped += 1
            continue
        used += 1
        total += roc_auc_score(y[own], p[own], sample_weight=w[own]) * w[own].sum(dtype=np.float64)
        weight += w[own].sum(dtype=np.float64)
    result = grouped_auc(groups, p, y, w)
    assert result.value == pytest.approx(total / weight, abs=1e-12)
    assert (result.groups, result.skipped) == (used, skipped)
    assert used > 50
    assert skipped > 5


def test_without_a_mixed_group_grouped_auc_is_undefined():
    p, y = np.array([0.1, 0.2], np.float32), np.array([True, False])
    result = grouped_auc(np.array([1, 2], np.uint64), p, y, np.ones(2, np.float32))
    assert math.isnan(result.value)
    assert result[1:] == (0, 2)


probabilities = st.floats(0, 1, width=32).map(abs)


@settings(deadline=None, max_examples=examples(300))
@given(
    st.lists(st.tuples(probabilities, st.booleans(), st.integers(0, 5)), min_size=1, max_size=80),
    st.sampled_from([64, 128, 4096, 2**19]),
)
def test_binned_auc_is_within_its_bound(samples, bins):
    p = np.array([s[0] for s in samples], np.float32)
    y = np.array([s[1] for s in samples])
    w = np.array([s[2] for s in samples], np.float32)
    histogram = new_histogram(bins)
    add_to_histogram(histogram, p, y, w)
    assert histogram.sum() == w.sum(dtype=np.float64)
    exact, (binned, bound) = exact_auc(p, y, w), binned_auc(histogram)
    assert math.isnan(exact) == math.isnan(binned) == math.isnan(bound)
    if not math.isnan(exact):
        assert abs(binned - exact) <= bound + 1e-12


def test_the_bound_is_reached():
    # Both orders of two scores of one bin: AUC 1 and 0, where the histogram says one half.
    scores = np.array([0.3, np.nextafter(np.float32(0.3), 1)], np.float32)
    for labels, auc in ((np.array([False, True]), 1.0), (np.array([True, False]), 0.0)):
        histogram = new_histogram(64)
        add_to_histogram(histogram, scores, labels, np.ones(2, np.float32))
        assert exact_auc(scores, labels, np.ones(2, np.float32)) == auc
        assert binned_auc(histogram) == (0.5, 0.5)


def bin_of(p, bins):
    histogram = new_histogram(bins)
    add_to_histogram(histogram, np.array([p], np.float32), np.array([True]), np.ones(1, np.float32))
    return int(histogram[1].argmax())


@settings(deadline=None, max_examples=examples(300))
@given(probabilities, probabilities, st.sampled_from([64, 4096, 2**19]))
def test_bins_never_fall_as_the_probability_grows(a, b, bins):
    low, high = sorted((a, b))
    assert bin_of(low, bins) <= bin_of(high, bins)


def test_bins_are_narrow_in_the_logit_on_both_sides():
    for p in (1e-6, 1e-3, 0.03, 0.2, 0.4, 0.6, 0.9, 0.999):
        step = 2.0**-12 * p * (1 - p)
        assert bin_of(p - step, 2**19) < bin_of(p, 2**19) < bin_of(p + step, 2**19)
    assert bin_of(0.0, 2**19) == 0
    assert bin_of(1.0, 2**19) == 2**19 - 1


@pytest.mark.parametrize("offset", [-7.0, -3.5, 0.0, 4.0])
def test_the_default_bound_is_small_for_click_models(offset):
    random = np.random.default_rng(0)
    y = random.random(400_000) < 0.2
    p = (1 / (1 + np.exp(-random.normal(y + offset, 1.0)))).astype(np.float32)
    w = np.ones(len(p), np.float32)
    histogram = new_histogram(2**19)
    add_to_histogram(histogram, p, y, w)
    binned, bound = binned_auc(histogram)
    assert bound < 5e-5
    assert abs(binned - exact_auc(p, y, w)) < 2e-6
