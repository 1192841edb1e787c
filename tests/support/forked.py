"""`subprocess.Popen` that forks satrap's programs from a process that has imported all they need.

A test of several processes would else spend most of its time on the imports of each. `install()` is for whole
programs: from then on every `Popen` of `python -m MODULE` or of the `satrap` command is such a copy, unless
it asks for what a copy cannot have (another interpreter, other variables, files that it passes on). So is
every process of pytest-xdist.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from execnet.gateway_io import popen_bootstrapline

from satrap.launch.launchers import fork_server
from satrap.launch.launchers.fork_server import ForkRequest, ForkServer

IMPORTS = ["satrap.cli.role_imports", "pandas", "scipy.stats", "sklearn.metrics", "tests.support"]
_ROOT = Path(__file__).parents[2]

_PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
_IN_NAMESPACE = ["ip", "netns", "exec"]
_XDIST_WORKER = ["-u", "-c", popen_bootstrapline]
_SATRAP = str(Path(sys.executable).with_name("satrap"))
_Popen: Any = subprocess.Popen


@cache
def server() -> ForkServer:
    """Return the fork server of this process."""
    with chdir(_ROOT):  # where it finds `tests`
        return ForkServer(IMPORTS)


class Popen(_Popen):
    """A process that is forked where it can be."""

    _ended = -1

    def _execute_child(self, args: Any, *rest: Any) -> None:
        names = _Popen._execute_child.__code__.co_varnames[2 : 2 + len(rest)]
        given = dict(zip(names, rest, strict=True))
        request = _request(args, given)
        if request is None or not self._fork(request, given):
            super()._execute_child(args, *rest)

    def _fork(self, request: ForkRequest, given: dict[str, Any]) -> bool:
        ended, theirs = os.pipe()
        files = [given["p2cread"], given["c2pwrite"], given["errwrite"]]
        files = [number if file == -1 else file for number, file in enumerate(files)]
        found = server().ask(request, [*files, theirs])
        os.close(theirs)
        if found is None:
            os.close(ended)
            return False
        pid, handle = found
        os.close(handle)
        self.pid, self._child_created, self._ended = pid, True, ended
        self._close_pipe_fds(*(given[name] for name in _PIPES))
        return True

    def _internal_poll(self, *rest: Any, **others: Any) -> int | None:
        if self._ended < 0:
            return super()._internal_poll(*rest, **others)
        return self._heard(0)

    def _wait(self, timeout: float | None) -> int | None:
        if self._ended < 0:
            return super()._wait(timeout=timeout)
        if self._heard(timeout) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return self.returncode

    def _heard(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._ended, selectors.EVENT_READ)
                selector.select(timeout)
                with self._waitpid_lock:
                    if self.returncode is None and selector.select(0):
                        self.returncode = int(os.read(self._ended, 32) or -9)
        return self.returncode

    def __del__(self, *rest: Any) -> None:
        super().__del__(*rest)  # asks once more whether it has ended
        if self._ended >= 0:
            os.close(self._ended)


def _request(args: Any, given: dict[str, Any]) -> ForkRequest | None:
    """Return what a copy would be, None if it cannot be one."""
    words = [os.fspath(word) for word in args] if isinstance(args, list | tuple) else []
    namespace = words[3:4] if words[:3] == _IN_NAMESPACE else []
    if namespace:
        words = words[4:]
    if words[:1] == [_SATRAP]:
        words[:1] = [sys.executable, "-m", "satrap.cli"]
    elif words == [sys.executable, *_XDIST_WORKER]:
        words[1:] = ["-m", "tests.support.xdist_worker"]
    if words[:2] != [sys.executable, "-m"] or given["pass_fds"] or given["preexec_fn"] or given["shell"]:
        return None
    changes = server().changes(given["env"] or os.environ)
    if changes is None:
        return None
    if words[2:4] == ["satrap.cli", "train"]:
        words[2] = "tests.support.launcher"
    if namespace:
        words[2:] = ["tests.support.inside", *namespace, *words[2:]]
    return ForkRequest(
        words[2],
        words[3:],
        os.fspath(given["cwd"] or Path.cwd()),
        blocked=[int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
        own_session=given["start_new_session"],
        changes=changes,
    )


@contextmanager
def interpreters() -> Iterator[None]:
    """For tests of the start itself: every process begins with its own imports."""
    before, subprocess.Popen = subprocess.Popen, _Popen
    try:
        yield
    finally:
        subprocess.Popen = before  # type: ignore[misc]


def install() -> None:
    """Let all processes that this one starts be copies, where they can; runs have one server together."""
    fork_server.shared = server
    subprocess.Popen = Popen  # type: ignore[misc]
