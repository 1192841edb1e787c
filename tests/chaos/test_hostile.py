"""Processes under attack for a short time; all of it is `python -m tools_dev.hostile`."""

from __future__ import annotations

import pytest

from tools_dev.hostile.__main__ import phase


@pytest.mark.chaos
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("secured", [False, True])
def test_attackers_end_nothing_change_nothing_and_cost_little(
    secured: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        outcome = phase(secured, messages=3_500, seconds=240, seed=1, attackers=1, least=12)
    assert not outcome.faults, outcome.faults
    assert outcome.delivered > 3_000
