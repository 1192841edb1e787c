"""Fault points of a run's processes: one that comes there waits until a test kills it or lets it go on."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path

from satrap.runtime import fault_points

POINT, PLACE = "SATRAP_TESTS_POINT", "SATRAP_TESTS_PLACE"


def listen() -> None:
    """Wait at the point that the environment names, in shards and workers; they or their fork server call it.

    In workers a move has many portions, one after each step, the first as soon as its order is seen.
    """
    if {"satrap.launch", "satrap.launch.launchers.fork_server"} & {*sys.orig_argv}:
        _move_in_small_portions()
    elif "shard" not in sys.orig_argv:
        return
    point, place = os.environ[POINT], Path(os.environ[PLACE])

    def wait(reached: str) -> None:
        if reached != point or not place.exists() or _rehearsing():
            return
        if not {"satrap.launch", "shard"} & {*sys.orig_argv}:
            return
        file = place / str(os.getpid())
        try:
            file.touch()
        except FileNotFoundError:  # the test has closed it just now
            return
        while file.exists():
            time.sleep(0.005)

    fault_points.listener = wait


def _move_in_small_portions() -> None:
    from satrap.train.resharding import moves

    moves.FIRST_ROWS, moves.PAUSED = 4, 1.0
    waiting = property(lambda course: course._prepared.exception() is None)
    setattr(moves.Course, "prepared", waiting)  # noqa: B010 - mypy does not let a property be assigned


def _rehearsing() -> bool:
    """Whether this is no move, but the rehearsal of one."""
    return any(frame.name == "rehearse" for frame in traceback.extract_stack(sys._getframe(2)))


class Point:
    """A fault point of processes that have the environment `variables`.

    Args:
        folder: for its files.
        name: of the point.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._place = folder / "waiting"
        self._place.mkdir(parents=True)
        self._visits = 0
        start = folder / "start"
        start.mkdir()
        (start / "sitecustomize.py").write_text("from tests.cluster import points\npoints.listen()\n")
        path = os.pathsep.join([str(start), str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
        self.variables = {**os.environ, "PYTHONPATH": path, POINT: name, PLACE: str(self._place)}

    def kill(self, pid: int | None, *, visit: int = 1) -> bool:
        """Kill a process if it is at the point; then, nobody waits there any more. Let all others go on.

        Args:
            pid: of the process; None: it has not started yet.
            visit: let it pass until it is there for so many times.

        Returns:
            Whether it was killed: else call it again.
        """
        for file in list(self._place.iterdir()):
            if file.name != str(pid):
                file.unlink()
                continue
            self._visits += 1
            if self._visits == visit:
                os.kill(int(file.name), signal.SIGKILL)
                shutil.rmtree(self._place.rename(self._place.with_name("closed")))
                return True
            file.unlink()
        return False
