"""The process of a worker, as a launcher starts and stops it."""

from __future__ import annotations

import signal
import time
from contextlib import closing

import pytest

from satrap.launch.cluster.worker import INTERRUPTED
from satrap.launch.launchers.launcher import Ended, Logged, Role, Stop
from satrap.launch.launchers.local_launcher import LocalLauncher
from tests.support import forked
from tests.support.roles import hear


@pytest.mark.cluster
def test_a_worker_that_is_interrupted_while_it_imports_says_nothing_but_that() -> None:
    """Also one whose launcher was started in the background, where SIGINT is ignored."""
    pauses = {"worker 0": 0.0, "worker 1": 0.3}
    with forked.interpreters(), closing(LocalLauncher()) as launcher:
        for name, seconds in pauses.items():
            before = signal.signal(signal.SIGINT, signal.SIG_IGN if seconds else signal.default_int_handler)
            launcher.start(Role(name, ["-m", "satrap.launch"], "{}"))
            signal.signal(signal.SIGINT, before)
            time.sleep(seconds)
            launcher.stop(name, Stop.SAVE)
        heard = hear(launcher, lambda heard: sum(isinstance(event, Ended) for _, event in heard) == 2)
    codes = {name: event.code for name, event in heard if isinstance(event, Ended)}
    assert "\n".join(event.line for _, event in heard if isinstance(event, Logged)) == ""
    assert codes == dict.fromkeys(pauses, INTERRUPTED)
