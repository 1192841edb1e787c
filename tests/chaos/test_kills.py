"""Some of the kill loop; all of it is `python -m tests.chaos.kills --kills 200`."""

from __future__ import annotations

import pytest

from tests.chaos.kills import line, loop

SEED = 1
"""Of the configurations, so that they are the same each time; the kills come when they come."""


@pytest.mark.chaos
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("number", [10, 19, 2, 16])
def test_kills(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    """10, 19: one process with deltas, with a tier. 2: three shards, two workers, two loaders, deltas. 16: a
    journal, deltas, eviction, admission, a loader and an embedding worker.
    """
    with capsys.disabled():
        [verdict] = loop(3, seed=SEED, numbers=[number])
    assert not verdict.error, verdict.error
    assert sum(verdict.kills.values()) >= 3, line(verdict)
    assert verdict.exact
    assert verdict.looked.snapshots > 0
    assert verdict.looked.finished > 0
