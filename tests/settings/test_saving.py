import pytest

from satrap.errors import ConfigError
from satrap.settings.saving import Checkpointing


@pytest.mark.parametrize("name", ["every_steps", "keep", "delta_every_steps"])
def test_impossible_plans_are_refused(name: str) -> None:
    plan = Checkpointing("x", **{name: 1})
    assert {"every_steps": None, "keep": 2, "delta_every_steps": None} | {name: 1} == {
        one: getattr(plan, one) for one in ("every_steps", "keep", "delta_every_steps")
    }
    with pytest.raises(ConfigError) as caught:
        Checkpointing("x", **{name: 0})
    assert caught.value.what == f"checkpoint: {name} must be >= 1, got 0"
