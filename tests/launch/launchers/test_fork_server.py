"""Copies of a process behave as `python -m MODULE` does, and leave nothing behind."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest

from satrap.launch.launchers.fork_server import Forked, ForkServer, works
from tests.cluster.runs import alive, eventually

Begin = Callable[..., Forked]
PROGRAM = "tests.launch.launchers.copied"


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    started = ForkServer(["json"])
    yield started
    started.close()


@pytest.fixture
def begin() -> Iterator[Begin]:
    begun: list[Forked] = []

    def start(server: ForkServer, *arguments: str, blocked: Collection[signal.Signals] = ()) -> Forked:
        copy = server.start(PROGRAM, arguments, blocked)
        assert copy is not None
        begun.append(copy)
        return copy

    yield start
    for copy in begun:
        for stream in (copy.stdin, copy.stdout, copy.stderr):
            stream.close()


def test_a_copy_is_as_a_new_interpreter(server: ForkServer, begin: Begin) -> None:
    copy = begin(server, "tell", "ü b", blocked={signal.SIGINT})
    copy.stdin.write("a line")
    copy.stdin.close()
    assert json.loads(copy.stdout.read()) == {
        "argv": ["tell", "ü b"],
        "folder": os.getcwd(),
        "path": os.getcwd(),
        "session": True,
        "blocked": [signal.SIGINT],
        "input": "a line",
        "title": ["-m", PROGRAM, "tell", "ü b"],
        "files": [0, 1, 2],
        "thread": True,
    }
    assert (copy.stderr.read(), copy.wait(9), copy.poll()) == ("", 0, 0)


@pytest.mark.parametrize(
    ("word", "code", "said"),
    [
        ("0", 0, ""),
        ("3", 3, ""),
        ("text", 1, "a last word\n"),
        ("raise", 1, "RuntimeError: what went wrong\n"),
        ("interrupt", -signal.SIGINT, ""),
    ],
)
def test_it_ends_as_an_interpreter_does(
    server: ForkServer, word: str, code: int, said: str, begin: Begin
) -> None:
    copy = begin(server, word)
    assert copy.wait() == code
    assert copy.stderr.read().endswith(said)


def test_its_threads_and_what_is_registered_for_its_end_come_first(server: ForkServer, begin: Begin) -> None:
    copy = begin(server, "late")
    assert (copy.stdout.read(), copy.wait()) == ("thread\nexit\n", 0)


def test_signals_reach_it_until_it_has_ended(server: ForkServer, begin: Begin) -> None:
    copy = begin(server, "wait")
    assert copy.stdout.readline() == "here\n"
    with pytest.raises(subprocess.TimeoutExpired):
        copy.wait(0.01)
    assert copy.poll() is None
    copy.send_signal(signal.SIGTERM)
    assert copy.wait(9) == -signal.SIGTERM
    copy.kill()


def test_many_at_once_end_each_with_its_code(server: ForkServer, begin: Begin) -> None:
    copies = [begin(server, str(code)) for code in range(40)]
    assert [copy.wait() for copy in copies] == list(range(40))


def test_variables_that_changed_need_a_new_interpreter(
    server: ForkServer, monkeypatch: pytest.MonkeyPatch, begin: Begin
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert server.start(PROGRAM, ["0"]) is None
    monkeypatch.undo()
    assert begin(server, "0").wait() == 0


def test_a_server_that_was_killed_starts_nothing_and_its_copies_end(begin: Begin) -> None:
    server = ForkServer([])
    copy = begin(server, "wait")
    assert copy.stdout.readline() == "here\n"
    server.close()
    assert server.start(PROGRAM, ["0"]) is None
    assert copy.wait(9) == -signal.SIGKILL
    assert eventually(lambda: not alive(copy.pid))


def test_a_system_without_handles_of_processes_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert works()

    def missing(pid: int) -> int:
        raise OSError(errno.ENOSYS, "not there")

    monkeypatch.setattr(os, "pidfd_open", missing)
    assert not works()


def test_modules_that_cannot_be_imported_start_nothing() -> None:
    server = ForkServer(["there.is.none"])
    assert server.start(PROGRAM, ["0"]) is None
    server.close()


def test_a_server_ends_with_the_process_that_started_it() -> None:
    process = subprocess.Popen([sys.executable, "-m", PROGRAM, "server"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    copy = int(process.stdout.readline())
    server = int(Path(f"/proc/{copy}/stat").read_text().rpartition(")")[2].split()[1])
    process.kill()
    process.communicate()
    assert eventually(lambda: not alive(server))
    os.kill(copy, signal.SIGKILL)
