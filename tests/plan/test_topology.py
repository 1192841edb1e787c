import pytest

from satrap.errors import ConfigError
from satrap.plan import WorkerRates
from satrap.plan.topology import assumed
from tests.plan.loads import topology


def test_known_rates_beat_assumed_ones() -> None:
    workers = topology(2, rates={8: WorkerRates(100, 50)})
    assert workers.rates_of(8).seconds(10, 20) == pytest.approx(0.1 + 0.4)
    assert workers.rates_of(16) == assumed(16)
    assert (1e9 / assumed(16).lookups, 1e9 / assumed(16).updates) == pytest.approx((14.8, 7.4))
    assert (1e9 / assumed(64).lookups, 1e9 / assumed(64).updates) == pytest.approx((29.2, 26.6))
    assert (workers.bandwidth, workers.latency) == (1.25e9, 200e-6)


def test_only_eviction_makes_room() -> None:
    assert [topology(1, bounded_by=b).evicts for b in ("", "admission", "eviction")] == [False, False, True]


@pytest.mark.parametrize("name", ["memory", "bandwidth", "latency"])
def test_numbers_are_above_0(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be above 0, got 0"):
        topology(2, **{name: 0})
    with pytest.raises(ConfigError, match="workers must be above 0"):
        topology(0)
    with pytest.raises(ConfigError, match="updates of dim 8 must be above 0"):
        topology(1, rates={8: WorkerRates(1, 0)})
