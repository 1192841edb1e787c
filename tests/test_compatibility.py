"""The table of settings that cannot be combined."""

from __future__ import annotations

import pytest

from satrap import compatibility
from satrap.compatibility import (
    BUT,
    IDLE,
    IMPLICIT,
    NEEDS,
    NO_TABLES,
    PAIRS,
    PLACED,
    POOLS,
    RULES,
    SETTINGS,
    SEVERAL,
    TORCHRUN,
)
from satrap.config.explain import walk
from satrap.config.source import dotted
from satrap.errors import ConfigError


def refusal(settings: dict[str, object]) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        compatibility.check(settings)
    return caught.value


def test_rules_name_keys_of_a_recipe() -> None:
    keys = {dotted((*pattern, key)) for pattern, model in walk() for key in model.model_fields}
    others = {IMPLICIT, NO_TABLES, PAIRS, *PLACED, POOLS, SEVERAL, TORCHRUN, "TrainingOptions.microbatches"}
    assert set(SETTINGS) - keys == others


def test_a_condition_is_a_value_or_anything_but_a_harmless_value() -> None:
    compatibility.check({})
    compatibility.check({"dense.compile": True})
    compatibility.check({"dense.compile": True, "dense.mesh.tensor": 1, "training.mode": "sync"})
    error = refusal({"dense.compile": True, "dense.mesh.tensor": 2})
    assert error.what == "compile cannot be combined with mesh.tensor"
    assert error.fix == "remove compile, or change mesh.tensor"
    error = refusal({"training.mode": "async", "dense.mesh.pipeline": 2})
    assert error.what == "mode: async cannot be combined with mesh.pipeline"


def test_some_settings_require_others() -> None:
    assert refusal({"training.follow": True}).what == "follow needs stream"
    compatibility.check({"training.follow": True, "data.stream": "log"})
    assert refusal({"dense.stages": ["top"]}).what == "stages has no effect without mesh.pipeline"
    error = refusal({"cluster.workers": 2, "cluster.exchange": "local", "training.mode": "async"})
    assert error.what == "workers is 2, but exchange is local"
    assert error.fix == "set exchange to servers"


def test_an_unknown_setting_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(AssertionError):
        compatibility.check({"dense.compiles": True})


def test_every_rule_has_a_reason_and_a_kind() -> None:
    assert all(rule.why and rule.kind in (compatibility.NOT, NEEDS, IDLE, BUT) for rule in RULES)
