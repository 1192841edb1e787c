from typing import Any

import pytest

from satrap.errors import ConfigError
from tests.plan.simulate.test_cluster import SOME, setup, simulate


@pytest.mark.parametrize(
    "wrong",
    [{"workers": 0}, {"cores": 0}, {"latency": -1.0}, {"steps": 5}, {"background": 2e9}, {"ahead": -1}],
)
def test_impossible_numbers_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        setup(**wrong)


def test_an_outcome_as_plain_data() -> None:
    plain = simulate(setup(mode="hybrid", ahead=2, workers=2), SOME).to_dict()
    assert plain["samples_per_second"] == pytest.approx(200 / plain["step_seconds"]["mean"])
    assert plain["step_seconds"]["p50"] <= plain["step_seconds"]["p99"] <= plain["step_seconds"]["p100"]
    assert plain["staleness"]["own"][2] >= 396
    assert 0 < plain["shard_busy"]["max"] <= 1
