"""A pool of processes that write parts; they exit when their parent exits, for any reason."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

from satrap.errors import DataError, SatrapError
from satrap.runtime.satrap_warnings import told

Work = Callable[[Any], Iterator[Any]]


def results(make: Callable[..., Work], arguments: Any, tasks: Iterator[Any], processes: int) -> Iterator[Any]:
    """Yield the results of `make(*arguments)(task)` for each task, in order of completion.

    Args:
        make: called once in each process; importable, as in `multiprocessing`.
        arguments: arguments of `make`; picklable, like tasks and results.
        tasks: consumed when a process is free.
        processes: number of processes; with 1 the work is done in this process.

    Raises:
        DataError: a process was killed.
        SatrapError: the work failed.
    """
    if processes == 1:
        work = make(*arguments)
        for task in tasks:
            yield from work(task)
        return
    spawn = multiprocessing.get_context("spawn")  # a fork would break PyTorch's threads
    free: list[tuple[Any, Connection]] = []
    busy: dict[Connection, Any] = {}
    following = next(tasks, None)
    try:
        while following is not None or busy:
            while following is not None and len(busy) < processes:
                process, pipe = free.pop() if free else _start(spawn, make, arguments)
                pipe.send(following)
                busy[pipe] = process
                following = next(tasks, None)
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                yield from _received(ready, busy, free)
    finally:
        for process, pipe in [*free, *((process, pipe) for pipe, process in busy.items())]:
            pipe.close()
            process.terminate()
            process.join()


def _start(spawn: Any, make: Callable[..., Work], arguments: Any) -> tuple[Any, Connection]:
    pipe, inner = spawn.Pipe()
    process = spawn.Process(target=_serve, args=(inner, make, arguments), daemon=True)
    process.start()
    inner.close()
    return process, pipe


def _received(
    pipe: Connection, busy: dict[Connection, Any], free: list[tuple[Any, Connection]]
) -> Iterator[Any]:
    """Yield the result in a pipe, if any; mark the process as free after its last result."""
    try:
        result = pipe.recv()
    except (EOFError, ConnectionResetError):
        process = busy[pipe]
        process.join()
        raise DataError(
            f"a worker process of satrap prepare ended with code {process.exitcode}",
            why="the system may be out of memory",
            fix="run the same command again to resume; if memory is short, reduce --processes",
        ) from None
    if isinstance(result, SatrapError | OSError):
        raise result
    if result is None:
        free.append((busy.pop(pipe), pipe))
    else:
        yield result


def _serve(pipe: Connection, make: Callable[..., Work], arguments: Any) -> None:
    """Process tasks from a pipe until it closes; send each task's results, then None."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C also reaches the parent, which ends this process
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with suppress(EOFError, BrokenPipeError):
        try:
            with told(lambda text: print(text, file=sys.stderr, flush=True)):
                work = make(*arguments)
                while True:
                    for result in work(pipe.recv()):
                        pipe.send(result)
                    pipe.send(None)
        except (SatrapError, OSError) as error:
            pipe.send(error)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
