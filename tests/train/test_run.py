"""The account of a run that goes on from a snapshot."""

from __future__ import annotations

import time

from satrap.schema import Label
from satrap.train.run import Run


def test_a_resumed_run_goes_on_counting_the_seconds_of_its_stages() -> None:
    before, run = Run([Label(name="y")]), Run([Label(name="y")])
    before.stages.seconds |= {"read": 3.0, "push": 1.0}
    run.restore(*before.state())
    run.stages.seconds["read"] += 2.0
    assert run.progress.stage_seconds["read"] == run.stages.seconds["read"] == 5.0
    assert run.progress.stage_seconds["push"] == run.stages.seconds["push"] == 1.0


def test_time_between_passes_does_not_count() -> None:
    run = Run([Label(name="y")], epochs=2)
    run.begin_epoch(0)
    time.sleep(0.02)
    run.end_epoch()
    before = run.finish().seconds
    assert before >= 0.02
    time.sleep(0.02)
    assert run.finish().seconds == before
