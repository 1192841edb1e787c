"""Settings of runs with several processes, and a signal that one of these gets."""

from __future__ import annotations

import os
import signal
from typing import Any

from satrap.train import Observer, Progress
from tests.cluster.runs import children

SERVERS = [
    "cluster.exchange=servers",
    "cluster.placement=row_wise",
    "cluster.wire.forward=float32",
    "cluster.wire.backward=float32",
]

COLLECTIVE = ["cluster.exchange=collective", *SERVERS[2:]]


class Kill(Observer):
    """Kills or stops a process after the first epoch, once."""

    def __init__(self, name: str = "worker 1", how: signal.Signals = signal.SIGKILL) -> None:
        self.name, self.how, self.killed = name, how, 0

    def evaluated(self, metrics: Any, progress: Progress) -> None:
        if not self.killed:
            self.killed = children(os.getpid())[self.name]
            os.kill(self.killed, self.how)
