from __future__ import annotations

import time

import pytest

from satrap.optim import Adagrad
from satrap.plan import measure
from satrap.schema import Table


def test_rates_are_measured_once_for_each_dim(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "ROWS", 256)
    tables = [Table(name, dim=dim, optimizer=Adagrad(lr=0.1)) for name, dim in (("a", 4), ("b", 8), ("c", 4))]
    found = measure.rates(tables)
    assert list(found) == [4, 8]
    assert all(10 < rate < 1e12 for rates in found.values() for rate in (rates.lookups, rates.updates))


def test_a_time_is_the_median_of_nine_after_a_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    taken, now = iter([100.0, 9.0, 1.0, 5.0, 4.0, 6.0, 2.0, 8.0, 3.0, 7.0]), [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def work() -> None:
        now[0] += next(taken)

    assert measure._seconds(work) == 5
    assert list(taken) == []


@pytest.mark.cluster
def test_processes_of_this_machine_are_timed() -> None:
    bandwidth, latency = measure.network(2)
    assert 1e4 < bandwidth < 1e12
    assert 1e-6 < latency < 60
