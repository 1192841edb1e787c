"""`python -m tests.support.launcher ARGUMENTS...` in a copy: the command line, with a fork server at once.

Its server is another copy, where `satrap train` as users start it begins one that has to import everything.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from socket import socket

from satrap.cli import main
from satrap.launchers import fork_server


class Copy:
    """A fork server's process, forked from this one, which has imported everything and started no thread."""

    def __init__(self, requests: socket, modules: Sequence[str]) -> None:
        self._pid = os.fork()
        if self._pid == 0:
            nothing = os.open(os.devnull, os.O_RDWR)
            for number in map(int, os.listdir("/proc/self/fd")):
                if number != requests.fileno():
                    os.dup2(nothing, number)
            fork_server._set_title([sys.executable, "-m", fork_server.__name__])
            fork_server._Server(requests).run()
            os._exit(0)

    def kill(self) -> None:
        os.kill(self._pid, signal.SIGKILL)

    def wait(self) -> None:
        os.waitpid(self._pid, 0)


fork_server._begun = Copy  # type: ignore[assignment]
main()
