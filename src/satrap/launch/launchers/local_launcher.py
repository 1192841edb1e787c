"""Roles as processes on this machine; no role outlives the program that started it."""

import contextlib
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Sequence
from typing import IO

from satrap.config.keys.cluster import ClusterKeys
from satrap.launch.launchers.fork_server import Forked, ForkServer
from satrap.launch.launchers.launcher import Ended, Launched, Logged, Role, Stop
from satrap.runtime.events import Event, decode

STOP_SECONDS = 60.0
"""Seconds for a released role to end."""

READ_SECONDS = 1.0
"""Seconds to read the last output of an ended role, because a child process may hold the pipe open."""


class LocalLauncher:
    """Launches roles on this machine, see `satrap.launch.launchers.launcher.Launcher`.

    A role's standard output carries events; its standard error is its log. Its standard input stays open
    while this process lives. A role ends itself when its input closes, so no role stays behind. A released
    role that has not ended after `stop_seconds` is killed. SIGINT requests a save; a role with an assignment
    starts with SIGINT blocked.

    Args:
        stop_seconds: see above.
        host: address on which roles listen by default.
        read: turns a line of a role's standard output into an event; None: it is part of the log.
        inherit: file descriptors that roles inherit.
        server: starts roles that are modules; None: each role does its own imports.
    """

    def __init__(
        self,
        stop_seconds: float = STOP_SECONDS,
        *,
        host: str = "127.0.0.1",
        read: Callable[[str], Event | None] = decode,
        inherit: Sequence[int] = (),
        server: ForkServer | None = None,
    ) -> None:
        self._stop_seconds, self._read, self._inherit = stop_seconds, read, inherit
        self.host, self._server = host, server
        self._processes: dict[str, subprocess.Popen[str] | Forked] = {}
        self._readers: dict[str, list[threading.Thread]] = {}
        # Not a SimpleQueue: in Python 3.11 its `get` may wait forever if a busy machine delays it past its
        # timeout. Then no signal would end the run.
        self._heard: queue.Queue[tuple[str, Event]] = queue.Queue()

    def reserve(self, keys: ClusterKeys, shards: Collection[int]) -> None:
        """Do nothing: resources of this machine are not counted."""

    def release(self, keys: ClusterKeys, shards: Collection[int]) -> None:
        """Do nothing."""

    def start(self, role: Role) -> None:
        """Start a role; one of the same name must have ended."""
        assert role.name not in self._processes
        listen = [] if role.listen is None else ["--listen", role.listen or f"{self.host}:0"]
        # A worker unblocks SIGINT when it is ready: during imports, a library may swallow the exception.
        process = self._process([*role.command, *listen], {signal.SIGINT} if role.assignment else set())
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._processes[role.name] = process
        self._heard.put((role.name, Launched(f"process {process.pid}")))
        self._readers[role.name] = [
            self._follow(role.name, process.stdout, self._read),
            self._follow(role.name, process.stderr, Logged),
        ]
        if role.assignment:
            with contextlib.suppress(BrokenPipeError):  # the role has ended, which `events` reports
                process.stdin.write(role.assignment + "\n")
                process.stdin.flush()

    def _process(self, command: list[str], blocked: set[signal.Signals]) -> subprocess.Popen[str] | Forked:
        option, module, *arguments = command
        if self._server and option == "-m" and (forked := self._server.start(module, arguments, blocked)):
            return forked
        before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
        try:
            # A new session: Ctrl-C reaches only the launcher, which stops the roles in order.
            return subprocess.Popen(
                [sys.executable, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
                pass_fds=self._inherit,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _follow(self, name: str, stream: IO[str], read: Callable[[str], Event | None]) -> threading.Thread:
        def follow() -> None:
            with stream:
                for line in map(str.rstrip, stream):
                    self._heard.put((name, read(line) or Logged(line)))

        thread = threading.Thread(target=follow, name=f"satrap-{name}", daemon=True)
        thread.start()
        return thread

    def stop(self, name: str, how: Stop) -> None:
        """Request the end of a role, or kill it; do nothing if it has ended."""
        process = self._processes.get(name)
        if process is None:
            return
        if how is Stop.RELEASE:
            _release(process)
        else:
            process.send_signal(signal.SIGINT if how is Stop.SAVE else signal.SIGKILL)

    def events(self, seconds: float) -> list[tuple[str, Event]]:
        """Return reports as (name, event), in order; wait at most `seconds` for the first one."""
        events: list[tuple[str, Event]] = []
        with contextlib.suppress(queue.Empty):
            events.append(self._heard.get(timeout=seconds))
        codes = {name: process.poll() for name, process in self._processes.items()}
        ended = {name: code for name, code in codes.items() if code is not None}
        for name in ended:
            self._finish(name)
        while not self._heard.empty():
            events.append(self._heard.get())
        return events + [(name, Ended(code)) for name, code in ended.items()]

    def _finish(self, name: str) -> None:
        _release(self._processes.pop(name))
        for reader in self._readers.pop(name):
            reader.join(READ_SECONDS)

    def close(self) -> None:
        """Kill the roles that were not released; return when all have ended."""
        for process in self._processes.values():
            assert process.stdin is not None
            if not process.stdin.closed:
                process.kill()
        for name, process in list(self._processes.items()):
            try:
                process.wait(self._stop_seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            self._finish(name)


def _release(process: subprocess.Popen[str] | Forked) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
