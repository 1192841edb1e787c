"""A fork server that is a copy itself, and so has nothing to import."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from socket import socket
from unittest import mock

from satrap.launch.launchers import fork_server


class Copy:
    """A fork server's process, forked from this one, which has imported everything and started no thread."""

    def __init__(self, requests: socket, modules: Sequence[str]) -> None:
        self._pid = os.fork()
        if self._pid == 0:
            nothing = os.open(os.devnull, os.O_RDWR)
            for number in range(3):
                os.dup2(nothing, number)
            for number in {*map(int, os.listdir("/proc/self/fd"))} - {0, 1, 2, requests.fileno()}:
                with suppress(OSError):  # that of the list
                    os.close(number)
            fork_server._set_title([sys.executable, "-m", fork_server.__name__])
            fork_server._Server(requests).run()
            os._exit(0)

    def kill(self) -> None:
        os.kill(self._pid, signal.SIGKILL)

    def wait(self) -> None:
        os.waitpid(self._pid, 0)


@contextmanager
def as_servers() -> Iterator[None]:
    """Let fork servers that begin in the block be copies of this process."""
    with mock.patch.object(fork_server, "_begun", Copy):
        yield
