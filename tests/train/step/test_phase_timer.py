from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from satrap.train.step import phase_timer as module
from satrap.train.step.phase_timer import STAGES, PhaseTimer


class Clock:
    """Time goes on only when somebody works."""

    def __init__(self) -> None:
        self.now = 0.0

    def work(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    return clock


def test_each_stage_has_its_time(clock: Clock) -> None:
    stages = PhaseTimer()
    assert stages.seconds == dict.fromkeys(STAGES, 0.0)

    def slow() -> Iterator[int]:
        for i in range(3):
            clock.work(2)
            yield i
        clock.work(1)

    items = []
    for item in stages.waited("read", slow()):
        clock.work(30)  # what the consumer does is not waiting
        items.append(item)
    assert items == [0, 1, 2]
    assert stages.seconds == dict.fromkeys(STAGES, 0.0) | {"read": 7.0}


def test_time_before_an_error_counts(clock: Clock) -> None:
    stages = PhaseTimer()

    def fail() -> None:
        with stages.timed("dense"):
            clock.work(4)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert stages.seconds["dense"] == 4.0
