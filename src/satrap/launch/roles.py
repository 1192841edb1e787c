"""Processes of one run on this machine: started, watched, stopped; none outlives the one that started it."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO

from satrap.events import Event, decode

TAIL_LINES = 3
"""Last lines of a role's log that an error shows."""

Hear = Callable[["Role", Event], None]


@dataclass(frozen=True)
class Logged(Event):
    """A role has written to its log, or what is no event.

    Args:
        line: without its end.
    """

    line: str


class Role:
    """One process with a name: a shard or a worker.

    Its standard output carries events, its standard error is its log. Its standard input is open as long as
    this process lives: a role ends itself when it closes, so that nothing is left behind, whatever happens.

    Args:
        name: for errors and logs, for example "shard 0".
        command: the program and its arguments.
        hear: called in threads with (role, event).
        assignment: a line written to its standard input, or none.

    Attributes:
        tail: last lines of its log.
    """

    def __init__(self, name: str, command: Sequence[str], hear: Hear, assignment: str = "") -> None:
        self.name, self._hear = name, hear
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        # A session of its own: Ctrl-C reaches only the launcher, which stops the roles in order.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._threads = [self._follow(process.stdout, decode), self._follow(process.stderr, Logged)]
        if assignment:
            with contextlib.suppress(BrokenPipeError):  # it has ended already, which is noticed
                process.stdin.write(assignment + "\n")
                process.stdin.flush()

    def _follow(self, stream: IO[str], read: Callable[[str], Event | None]) -> threading.Thread:
        thread = threading.Thread(
            target=self._read, args=(stream, read), name=f"satrap-{self.name}", daemon=True
        )
        thread.start()
        return thread

    def _read(self, stream: IO[str], read: Callable[[str], Event | None]) -> None:
        with stream:
            for line in stream:
                event = read(line.rstrip()) or Logged(line.rstrip())
                if isinstance(event, Logged):
                    self.tail.append(event.line)
                self._hear(self, event)

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    @property
    def code(self) -> int | None:
        """Exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    @property
    def ending(self) -> str:
        """How it ended, in words: "was killed by SIGKILL", "ended with exit code 1"."""
        code = self.code
        if code is None:
            return "is running"
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    @property
    def traces(self) -> str:
        """Process number and last lines of the log, for an error."""
        lines = " | ".join(line for line in self.tail if line)
        return f"process {self.pid}" + (f"; its last lines: {lines}" if lines else "; it logged nothing")

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if it still runs."""
        self._process.send_signal(number)

    def release(self) -> None:
        """Close its standard input: a shard then ends in an orderly way."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def end(self, seconds: float) -> None:
        """Wait until it has ended, and kill it if that takes longer; then its log is complete."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.release()
        for thread in self._threads:
            thread.join(1.0)
