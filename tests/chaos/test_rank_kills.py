"""Some of the kills of ranks; all of them are `python -m tools_dev.chaos.rank_kills --runs 30`."""

from __future__ import annotations

import pytest

from tools_dev.chaos.rank_kills import loop


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_survivors_name_the_loss_and_the_run_goes_on_to_the_same_bytes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with capsys.disabled():
        assert loop(3, seed=2) >= 2
