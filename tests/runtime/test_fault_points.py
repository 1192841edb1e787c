"""Fault points: silent unless armed, and then exactly as asked."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests import faults


def fired(hits: int, **when: object) -> list[int]:
    found: list[int] = []
    passed: list[int] = []
    with faults.armed("a.*", lambda _: found.append(len(passed)), **when):  # type: ignore[arg-type]
        for number in range(1, hits + 1):
            passed.append(number)
            faults.hit("a.b")
            faults.hit("b.a")
    faults.hit("a.b")
    return found


def test_when() -> None:
    assert fired(9) == [1]
    assert fired(9, at=4) == [4]
    assert fired(9, at=2, every=3) == [2, 5, 8]
    some = fired(1000, every=1, probability=0.3, seed=7)
    assert 200 < len(some) < 400
    assert some == fired(1000, every=1, probability=0.3, seed=7)
    assert some != fired(1000, every=1, probability=0.3, seed=8)


def test_what() -> None:
    with (
        faults.armed("x", faults.fail(lambda: OSError(5, "broken"))) as fault,
        pytest.raises(OSError, match="broken"),
    ):
        faults.hit("x")
    assert (fault.hits, fault.fired) == (1, ["x"])
    faults.hit("x")
    code = (
        "from tests import faults\nwith faults.armed('x', faults.kill):\n    faults.hit('x')\nprint('alive')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (-9, b"")
