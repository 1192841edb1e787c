from typing import Any

import pytest

from satrap.errors import ConfigError
from satrap.settings.training import TrainingOptions


def gain(labels: Any) -> float:
    return 0.0


def test_an_unknown_monitor_is_refused() -> None:
    with pytest.raises(ConfigError, match="monitor 'gane' is not a metric") as caught:
        TrainingOptions(monitor="gane", metrics=(gain,))
    assert caught.value.fix == "did you mean 'gain'? allowed: auc, logloss, gain"
