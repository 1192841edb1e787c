"""Fast process starts: forks of a process that has already imported its modules.

The imports of a worker take seconds of CPU time, mostly in PyTorch. A fork server imports modules once and
forks for each requested process. It has no threads and has run only imports, so a fork is like a new
interpreter after its imports. The server ends with its parent process. Its program is `python -m
satrap.launch.launchers.fork_server FD MODULE...`.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import json
import os
import re
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import IO, Any, cast

from satrap.runtime.environment import variables

_READY = b"ready"
_REQUEST_BYTES = 1 << 16
_TITLE_BYTES = 4096
"""Space for the command lines of the forks, as `ps` shows them."""
_READ_EARLY = re.compile(
    "ARROW|CUDA|GLOO|GOMP|JE_|KMP|LD_|MALLOC|MKL|NCCL|NUMBA|OMP|OPENBLAS|PYTHON|PYTORCH|SATRAP|TORCH_"
).match
"""Environment variables that libraries read during import."""


@dataclass(frozen=True)
class ForkRequest:
    """A process to fork."""

    module: str
    arguments: list[str]
    folder: str
    blocked: list[int] = field(default_factory=list)  # signals
    own_session: bool = True
    changes: Mapping[str, str | None] = field(default_factory=dict)  # environment variables; None: removed


shared: Callable[[], ForkServer] | None = None
"""Returns the fork server shared by all runs of this process; None: each run has its own."""


class Forked:
    """A process of a fork server, with the interface of `subprocess.Popen`.

    The process is killed when the server has ended.

    Args:
        pid: process id.
        handle: result of `os.pidfd_open`.
        stdin, stdout, stderr: our ends of its standard streams.
        ended: pipe to which the server writes the exit code.
    """

    def __init__(
        self, pid: int, handle: int, stdin: IO[str], stdout: IO[str], stderr: IO[str], ended: IO[str]
    ) -> None:
        self.pid, self.stdin, self.stdout, self.stderr = pid, stdin, stdout, stderr
        self.returncode: int | None = None
        self._ended, self._handle = ended, handle

    def poll(self) -> int | None:
        """Return the exit code, None while the process runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code when the process has ended; raise `subprocess.TimeoutExpired` on timeout."""
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._ended, selectors.EVENT_READ)
                if not selector.select(timeout):
                    raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            code = self._ended.readline()
            if not code:  # the server was killed and cannot report the end of this process
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._handle, signal.SIGKILL)
            self.returncode = int(code or -signal.SIGKILL)
            self._ended.close()
            os.close(self._handle)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal; do nothing if the process has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, number)

    def kill(self) -> None:
        """Kill the process."""
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """Starts Python modules, as `python -m` does, in processes with pre-imported modules.

    Args:
        modules: modules to import.
    """

    def __init__(self, modules: Sequence[str]) -> None:
        self._environment = dict(variables())
        self._lock = threading.Lock()
        self._ready = False
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = _begun(theirs, modules)
        atexit.register(self.close)

    def start(
        self, module: str, arguments: Sequence[str] = (), blocked: Collection[signal.Signals] = ()
    ) -> Forked | None:
        """Start `python -m MODULE ARGUMENTS...` in a new session, with pipes as standard streams.

        Wait for the imports of the server first. Return None if the server has ended, or if an environment
        variable that libraries read during import has changed since its start.

        Args:
            module: module to run.
            arguments: command-line arguments.
            blocked: signals to block at its start.
        """
        changes = self.changes(variables())
        if changes is None:
            return None
        (stdin, to), *pipes = [os.pipe() for _ in range(4)]
        ours = [os.fdopen(to, "w", errors="replace")]
        ours += [os.fdopen(read, errors="replace") for read, _ in pipes]
        theirs = [stdin, *(write for _, write in pipes)]
        try:
            blocks, folder = [*map(int, blocked)], str(Path.cwd())
            process = self.ask(ForkRequest(module, [*arguments], folder, blocks, changes=changes), theirs)
        finally:
            for number in theirs:
                os.close(number)
        if process is None:
            for file in ours:
                file.close()
            return None
        return Forked(*process, *ours)

    def changes(self, environment: Mapping[str, str]) -> dict[str, str | None] | None:
        """Return the variables that differ from the server's environment; None for a removed variable.

        Return None if libraries read one of them during import.
        """
        names = {name for name, _ in environment.items() ^ self._environment.items()}
        return None if any(map(_READ_EARLY, names)) else {name: environment.get(name) for name in names}

    def ask(self, request: ForkRequest, files: Sequence[int]) -> tuple[int, int] | None:
        """Fork; return id and handle of the new process, or None if the server has ended.

        Args:
            request: the process to fork.
            files: its standard streams, and the pipe to which the server writes its exit code.
        """
        text = json.dumps(asdict(request)).encode()
        try:
            with self._lock:
                self._ready = self._ready or self._socket.recv(len(_READY)) == _READY
                socket.send_fds(self._socket, [text], files)
                pid, handles, _, _ = socket.recv_fds(self._socket, _REQUEST_BYTES, 1)
                return (int(pid), handles[0]) if pid else None
        except OSError:
            return None

    def close(self) -> None:
        """End the server."""
        atexit.unregister(self.close)
        self._socket.close()
        self._process.kill()
        self._process.wait()


def works() -> bool:
    """Return whether the system supports fork servers: Linux 5.3 or newer."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


@contextmanager
def fork_server(modules: Sequence[str]) -> Iterator[ForkServer]:
    """Yield a server that imports modules; it ends with the block."""
    if shared is not None:
        yield shared()
        return
    server = ForkServer(modules)
    try:
        yield server
    finally:
        server.close()


def _begun(requests: socket.socket, modules: Sequence[str]) -> subprocess.Popen[bytes]:
    number, room = str(requests.fileno()), " " * _TITLE_BYTES
    return subprocess.Popen(
        [sys.executable, "-m", "satrap.launch.launchers.fork_server", number, *modules, room],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        pass_fds=[requests.fileno()],
    )


class _Server:
    """The loop of the server's process."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._selector = selectors.DefaultSelector()
        self._selector.register(requests, selectors.EVENT_READ)
        self._copies: dict[
            int, tuple[int, int]
        ] = {}  # handle of a process -> process id, file for the exit code

    def run(self) -> None:
        """Serve until the other end closes."""
        self._requests.send(_READY)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is not self._requests:
                    self._reap(key.fd)
                    continue
                text, files, _, _ = socket.recv_fds(self._requests, _REQUEST_BYTES, 4)
                if not text:
                    return
                pid, handle = self._fork(ForkRequest(**json.loads(text)), files)
                socket.send_fds(self._requests, [b"%d" % pid], [handle])

    def _reap(self, handle: int) -> None:
        self._selector.unregister(handle)
        pid, file = self._copies.pop(handle)
        os.close(handle)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with contextlib.suppress(BrokenPipeError), os.fdopen(file, "w") as ended:
            ended.write(f"{code}\n")

    def _fork(self, request: ForkRequest, files: Sequence[int]) -> tuple[int, int]:
        *standard, ended = files
        pid = os.fork()
        if pid == 0:
            for opened in (*self._copies, *(file for _, file in self._copies.values()), ended):
                os.close(opened)
            self._selector.close()
            self._requests.close()
            _become(request, standard)
        for file in standard:
            os.close(file)
        handle = os.pidfd_open(pid)
        self._copies[handle] = pid, ended
        self._selector.register(handle, selectors.EVENT_READ)
        return pid, handle


def _become(request: ForkRequest, standard: Sequence[int]) -> None:
    """Run the requested process until it ends."""
    try:
        cast(Any, threading.main_thread())._set_native_id()
        if request.own_session:
            os.setsid()
        for number, file in enumerate(standard):
            os.dup2(file, number)
            os.close(file)
        signal.pthread_sigmask(signal.SIG_SETMASK, request.blocked)
        os.chdir(request.folder)
        for name, value in request.changes.items():
            variables().pop(name, None) if value is None else variables().update({name: value})
        sys.path[0], sys.argv[1:] = request.folder, request.arguments
        sys.orig_argv[1:] = ["-m", request.module, *request.arguments]
        _set_title(sys.orig_argv)
        runpy.run_module(request.module, run_name="__main__", alter_sys=True)
    finally:
        _end(sys.exception())


def _end(error: BaseException | None) -> None:
    """Exit like an interpreter: join the threads, then run the exit handlers."""
    code = int(error is not None)
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
    elif isinstance(error, KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    elif error is not None:
        sys.excepthook(type(error), error, error.__traceback__)
    cast(Any, threading)._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _set_title(words: Sequence[str]) -> None:
    """Overwrite the server's command line, as shown by `ps`."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[45]), int(fields[46])
    title = b"\0".join(map(os.fsencode, words))[: end - begin - 1]
    ctypes.memmove(begin, title.ljust(end - begin, b"\0"), end - begin)


def main() -> None:
    """Import the modules, then serve requests."""
    _, number, *modules, _ = sys.argv
    for name in modules:
        import_module(name)
    gc.collect()
    gc.freeze()  # without this, a collection in a fork writes to all pages
    with socket.socket(fileno=int(number)) as requests:
        _Server(requests).run()


if __name__ == "__main__":
    import_module("satrap.launch.launchers.fork_server").main()  # the same module object as in forks
