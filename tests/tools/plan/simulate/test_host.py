"""Jobs that share cores, against times computed by hand."""

from __future__ import annotations

import pytest
import simpy

from satrap.tools.plan.simulate.host import Host, Meeting, slow


def ends(cores: int, slowdown: float, jobs: list[tuple[float, float]]) -> tuple[list[float], Host]:
    """Return when jobs (start, seconds) are done."""
    env = simpy.Environment()
    host, found = Host(env, cores, slowdown), [0.0] * len(jobs)

    def one(i: int, start: float, seconds: float):  # type: ignore[no-untyped-def]
        yield env.timeout(start)
        yield host.work(seconds)
        found[i] = env.now

    for i, (start, seconds) in enumerate(jobs):
        env.process(one(i, start, seconds))
    env.run()
    return found, host


@pytest.mark.parametrize(
    ("cores", "slowdown", "jobs", "expected"),
    [
        (1, 1.0, [(0, 1), (0, 2)], [2, 3]),  # half speed until 2, then alone
        (1, 1.0, [(0, 2), (1, 0.5)], [2.5, 2]),
        (2, 1.0, [(0, 1), (0, 2)], [1, 2]),
        (2, 1.0, [(0, 1), (0, 1), (0, 1), (0, 1)], [2, 2, 2, 2]),
        (2, 1.5, [(0, 1), (0, 1)], [1.5, 1.5]),
        (2, 1.5, [(0, 1), (0, 2)], [1.5, 2.5]),
        (4, 2.0, [(0, 1)], [1]),
        (1, 1.0, [(0, 0), (0, 1)], [0, 1]),
    ],
)
def test_cores_are_shared(
    cores: int, slowdown: float, jobs: list[tuple[float, float]], expected: list[float]
) -> None:
    found, host = ends(cores, slowdown, jobs)
    assert found == pytest.approx(expected)
    if slowdown == 1:
        assert host.busy == pytest.approx(sum(seconds for _, seconds in jobs))


def test_slowdown_grows_with_the_busy_cores() -> None:
    assert [slow(2.0, busy, 3) for busy in (0.5, 1, 2, 3, 5)] == [1, 1, 1.5, 2, 2]
    assert slow(2.0, 1, 1) == 1


def test_nobody_leaves_a_meeting_before_the_last_has_come() -> None:
    env = simpy.Environment()
    meeting, left = Meeting(env, 3, 0.5), list[tuple[float, int]]()

    def one(number: int):  # type: ignore[no-untyped-def]
        for _ in range(2):
            yield env.timeout(number)
            yield meeting.come()
            left.append((env.now, number))

    for number in (1, 2, 3):
        env.process(one(number))
    env.run()
    assert [at for at, _ in left] == [3.5] * 3 + [7.0] * 3
