"""Losses of pairs: their settings."""

from __future__ import annotations

from typing import Any

import pytest

from satrap import losses
from satrap.errors import ConfigError


@pytest.mark.parametrize(
    "loss",
    [losses.SampledSoftmax(temperature=0.1, logq=True, hardest=3), losses.BPR(listed="shown", power=0.75)],
)
def test_settings_are_plain_data(loss: losses.PairLoss) -> None:
    assert losses.from_dict(loss.to_dict()) == loss


@pytest.mark.parametrize(
    ("kind", "wrong", "what"),
    [
        (losses.BPR, {"in_batch": False}, "no negatives"),
        (losses.BPR, {"negatives": -1}, "no negatives"),
        (losses.BPR, {"power": -1.0}, "power must be >= 0"),
        (losses.SampledSoftmax, {"hardest": 0}, "hardest must be >= 1"),
        (losses.SampledSoftmax, {"temperature": 0.0}, "temperature must be > 0"),
    ],
)
def test_bad_settings_are_errors(kind: Any, wrong: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        kind(**wrong)


def test_an_unknown_loss_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"loss 'sampled_softmx' in settings is unknown") as error:
        losses.from_dict({"name": "sampled_softmx"})
    assert "sampled_softmax" in (error.value.fix or "")


def test_only_draws_and_corrections_count_items() -> None:
    assert not losses.SampledSoftmax().counts_items
    assert losses.SampledSoftmax(logq=True).counts_items
    assert losses.BPR(negatives=1).counts_items
    assert not losses.BPR(in_batch=False, listed="shown").counts_items
