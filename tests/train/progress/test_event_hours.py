"""The metrics of each hour of events against those of all its samples at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from satrap.batch import Batch
from satrap.metrics import Metrics
from satrap.schema import Label
from satrap.train.progress.event_hours import HOUR, EventHours

LABELS = [Label(name="y")]


def drawn(times: list[float], seed: int) -> tuple[Batch, np.ndarray]:
    random = np.random.default_rng(seed)
    labels = random.integers(0, 2, (len(times), 1)).astype(np.float32)
    scores = random.random((len(times), 1)).astype(np.float32)
    weights = random.random(len(times)).astype(np.float32)
    return Batch(len(times), {}, labels=labels, weights=weights, times=np.array(times)), scores


@given(st.lists(st.lists(st.integers(0, 12_000), min_size=1, max_size=30), min_size=1, max_size=12))
def test_each_hour_has_the_metrics_of_its_samples(offsets: list[list[int]]) -> None:
    hours, found = EventHours(LABELS), dict[str, dict[str, float]]()
    expected, late = dict[int, Metrics](), 0
    batches = [drawn([1e9 + t for t in some], seed) for seed, some in enumerate(offsets)]
    for number, (batch, scores) in enumerate(batches):
        found |= dict(hours.add(batch, scores))
        if number == len(batches) // 2:  # a resumed run goes on
            state, hours = hours.state(), EventHours(LABELS)
            hours.restore(state)
    late = hours.late
    found |= dict(hours.end())
    assert batches[0][0].times is not None
    total = sum(batch.size for batch, _ in batches)
    assert sum(int(metrics["samples"]) for metrics in found.values()) + late == total
    for batch, scores in batches:
        assert batch.times is not None
        for hour in np.unique(batch.times // HOUR).astype(int):
            rows = batch.times // HOUR == hour
            metrics = expected.setdefault(hour, Metrics(LABELS, exact_limit=0, bins=4096))
            assert batch.labels is not None
            assert batch.weights is not None
            metrics.update(batch.labels[rows], scores[rows], weights=batch.weights[rows])
    if not late:
        names = [f"{np.datetime64(int(hour), 'h')}:00Z" for hour in sorted(expected)]
        assert sorted(found) == names
        for name, hour in zip(names, sorted(expected), strict=True):
            for key, value in expected[hour].compute().items():
                assert found[name][key] == pytest.approx(value, nan_ok=True)


def test_an_hour_ends_when_the_second_after_it_begins_and_then_takes_no_more() -> None:
    hours = EventHours(LABELS)
    noon = 1_700_000_000 // HOUR * HOUR
    assert list(hours.add(*drawn([noon, noon + 10], 0))) == []
    assert list(hours.add(*drawn([noon + HOUR, noon + 20], 1))) == []
    [(name, metrics)] = hours.add(*drawn([noon + 2 * HOUR], 2))
    assert (name, metrics["samples"]) == ("2023-11-14T22:00Z", 3)
    assert list(hours.add(*drawn([noon + 30, noon + 31], 3))) == []
    assert (hours.late, hours.latest) == (2, noon + 2 * HOUR)
    assert [(name, metrics["samples"]) for name, metrics in hours.end()] == [
        ("2023-11-14T23:00Z", 1),
        ("2023-11-15T00:00Z", 1),
    ]


def test_events_without_a_time_are_in_no_hour() -> None:
    hours = EventHours(LABELS)
    assert list(hours.add(*drawn([float("nan")], 0))) == []
    assert np.isnan(hours.latest)
    assert list(hours.add(*drawn([float("nan"), 5.0], 0))) == []
    assert [metrics["samples"] for _, metrics in hours.end()] == [1]
