import pytest

from satrap.errors import StoreError
from satrap.models import DNN
from satrap.tools.doctor import trial


def test_a_training_of_a_moment() -> None:
    [found] = trial.trial(0.1)
    assert found.level == "ok"
    assert "samples/s" in found.found


def test_a_training_that_fails_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> DNN:
        raise StoreError("no address space", fix="raise it")

    monkeypatch.setattr(trial, "DNN", fail)
    [found] = trial.trial(0.1)
    assert (found.level, found.found) == ("error", "StoreError: no address space")
