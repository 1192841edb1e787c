"""Some of the kill loop; all of it is `python -m tools_dev.chaos.kills --kills 200`."""

from __future__ import annotations

import pytest

from tools_dev.chaos.kills import line, loop

SEED = 1
"""Of the configurations, so that they are the same each time; the kills come when they come."""


@pytest.mark.chaos
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "number", [*(pytest.param(number, marks=pytest.mark.slow) for number in (12, 21)), 17, 18, 7, 22]
)
def test_kills(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    """12, 17: one process with deltas, looking ahead, and with a tier. 18: three shards, two workers, two
    loaders, eviction. 7: a journal, eviction, admission and an embedding worker. 21: three shards, deltas,
    looking ahead. 22: two workers that hold the rows, two loaders, deltas and admission.
    """
    with capsys.disabled():
        [verdict] = loop(3, seed=SEED, numbers=[number])
    assert not verdict.error, verdict.error
    assert sum(verdict.kills.values()) >= 3, line(verdict)
    assert verdict.exact
    assert verdict.looked.snapshots > 0
    assert verdict.looked.finished > 0


@pytest.mark.chaos
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("number", [20, 2])
def test_kills_after_which_other_processes_go_on(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    """20: sync with eviction and admission. 2: hybrid with eviction and deltas."""
    with capsys.disabled():
        [verdict] = loop(6, seed=SEED, numbers=[number], changes=True)
    assert not verdict.error, verdict.error
    assert sum(verdict.kills.values()) >= 6, line(verdict)
    assert verdict.looked.compared > 0
    assert verdict.looked.finished > 0
