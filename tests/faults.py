"""Arms the fault points of `satrap.runtime.fault_points`, so that something goes wrong there.

```python
with faults.armed("checkpoint.*", faults.kill, at=3):
    ...                                             # the third hit of any such point kills the process
```
"""

from __future__ import annotations

import fnmatch
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from satrap.runtime import fault_points

Action = Callable[[str], None]
hit = fault_points.hit


@dataclass(slots=True)
class Fault:
    """What happens at some points, and when.

    Args:
        points: name of a point, or a pattern of `fnmatch`.
        action: called with the name of the point.
        at: the first hit, from 1, that triggers.
        every: after that each `every`-th hit triggers too; None: only the first.
        probability: chance with which a hit that would trigger does.
        seed: of the chance.

    Attributes:
        hits: how many hits matched so far.
        fired: names of the points where it triggered.
    """

    points: str
    action: Action
    at: int = 1
    every: int | None = None
    probability: float = 1.0
    seed: int = 0
    hits: int = 0
    fired: list[str] = field(default_factory=list)
    _random: random.Random | None = None

    def take(self, point: str) -> bool:
        """Count a hit; return whether it triggers."""
        if not fnmatch.fnmatchcase(point, self.points):
            return False
        self.hits += 1
        late = self.hits - self.at
        if late < 0 or (late > 0 and (self.every is None or late % self.every)):
            return False
        self._random = self._random or random.Random(self.seed)
        if self._random.random() >= self.probability:
            return False
        self.fired.append(point)
        return True


_armed: list[Fault] = []
_lock = threading.Lock()


def _pass(point: str) -> None:
    with _lock:
        due = [fault for fault in _armed if fault.take(point)]
    for fault in due:
        fault.action(point)


fault_points.listener = _pass


@contextmanager
def armed(
    points: str,
    action: Action,
    *,
    at: int = 1,
    every: int | None = None,
    probability: float = 1.0,
    seed: int = 0,
) -> Iterator[Fault]:
    """Arm points for the duration of a block; see `Fault` for the arguments."""
    fault = Fault(points, action, at, every, probability, seed)
    _armed.append(fault)
    try:
        yield fault
    finally:
        _armed.remove(fault)


def kill(_: str) -> None:
    """Action: end this process at once, as a power cut or the kernel's out-of-memory killer would."""
    os.kill(os.getpid(), signal.SIGKILL)


def fail(error: Callable[[], BaseException]) -> Action:
    """Return an action that raises what `error` makes."""

    def action(_: str) -> None:
        raise error()

    return action


def delay(seconds: float) -> Action:
    """Return an action that waits."""
    return lambda _: time.sleep(seconds)
