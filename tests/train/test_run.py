"""The account of a run that goes on from a snapshot."""

from __future__ import annotations

from satrap.train.run import Run


def test_a_resumed_run_goes_on_counting_the_seconds_of_its_stages() -> None:
    before, run = Run(("y",)), Run(("y",))
    before.stages.seconds |= {"read": 3.0, "push": 1.0}
    run.restore(*before.state())
    run.stages.seconds["read"] += 2.0
    assert run.progress.stage_seconds["read"] == run.stages.seconds["read"] == 5.0
    assert run.progress.stage_seconds["push"] == run.stages.seconds["push"] == 1.0
