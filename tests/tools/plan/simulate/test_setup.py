from typing import Any

import pytest

from satrap.errors import ConfigError
from satrap.tools.plan.simulate.cluster import simulate
from tests.tools.plan.simulate.setups import SOME, setup


@pytest.mark.parametrize(
    "wrong",
    [
        *({name: 0} for name in ("workers", "shards", "samples", "cores", "bandwidth", "hot", "straggler")),
        *({name: -0.5} for name in ("ahead", "latency", "lost", "background")),
        {"steps": 9},
        {"background": 1.25e9},
    ],
)
def test_impossible_numbers_are_refused(wrong: dict[str, Any]) -> None:
    said = "background traffic" if wrong == {"background": 1.25e9} else next(iter(wrong))
    with pytest.raises(ConfigError, match=said):
        setup(**wrong)
    assert setup(steps=10).seed == 1


def test_an_outcome_as_plain_data() -> None:
    plain = simulate(setup(mode="hybrid", ahead=2, workers=2), SOME).to_dict()
    assert plain["samples_per_second"] == pytest.approx(200 / plain["step_seconds"]["mean"])
    assert plain["step_seconds"]["p50"] <= plain["step_seconds"]["p99"] <= plain["step_seconds"]["p100"]
    assert plain["staleness"]["own"][2] >= 396
    assert 0 < plain["shard_busy"]["max"] <= 1
