"""Settings of runs with several processes, and a kill of one of their workers."""

from __future__ import annotations

import os
import signal
from typing import Any

from satrap.train import Observer, Progress
from tests.cluster.runs import children

SERVERS = [
    "cluster.exchange=servers",
    "cluster.wire.forward=float32",
    "cluster.wire.backward=float32",
]

COLLECTIVE = ["cluster.exchange=collective", *SERVERS[1:]]


class KillWorker(Observer):
    """Kills a worker after the first epoch, once."""

    def __init__(self) -> None:
        self.killed = 0

    def evaluated(self, metrics: Any, progress: Progress) -> None:
        if self.killed:
            return
        self.killed = children(os.getpid())["worker 1"]
        os.kill(self.killed, signal.SIGKILL)
