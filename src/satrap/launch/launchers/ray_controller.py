"""Detached runs: a detached Ray actor keeps each run going without the program that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from satrap.config.keys.cluster import ClusterKeys
from satrap.errors import ConfigError, ExchangeError, SatrapError
from satrap.launch.launchers.ray_agent import alone
from satrap.launch.launchers.ray_cluster import join, last_line, ray_module
from satrap.runtime.environment import variables

KEPT_LINES = 10_000
"""Number of output lines that a controller keeps for clients that attach later."""

START_SECONDS = 90.0
"""Seconds for Ray to start a controller."""

FOUND_SECONDS = 60.0
"""Seconds for Ray to restart a dead controller."""

ANSWER_SECONDS = 2.0
"""Seconds after which a controller answers without new lines."""

_NAMESPACE = "satrap"
_TICK = 0.1
_OF_A_WORKER = ("RAY_JOB_ID", "RAY_RAYLET_PID", "RAY_LD_PRELOAD_ON_WORKERS", "RAY_CLIENT_MODE")
"""Variables that Ray sets in its workers, and that an independent program must not have."""


class Controller:
    """Keeps a command running until it ends by itself. Ray turns this plain class into a detached actor.

    The command is `satrap train --until-done`: it starts its run, or resumes from the newest snapshot. If the
    command is killed, the controller restarts it. If the controller is killed, the command's standard input
    closes, so the command saves and ends. Ray starts another controller, here or on another node, which waits
    for this end.

    Args:
        command: arguments of the Python interpreter.
        folder: working folder of the command.
        name: name of the run; a node never runs two commands of the same name.
        restarts: number of restarts after kills.
        patience: seconds for the command of a previous controller to save and end.
    """

    def __init__(
        self, command: Sequence[str], folder: str, name: str, *, restarts: int, patience: float
    ) -> None:
        self._command, self._folder, self._name = list(command), folder, name
        self._restarts, self._patience = restarts, patience
        self._born = time.time_ns()  # identifies the controller that numbered the lines
        self._lines: list[str] = []
        self._first = 0  # number of the oldest line in `_lines`
        self._lock = threading.Condition()
        self._process: subprocess.Popen[str] | None = None
        self._stopped = False
        self._code: int | None = None  # exit code of the command
        # Ray blocks SIGINT in its workers, and children inherit the mask.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        threading.Thread(target=self._keep_going, name="satrap-controller", daemon=True).start()

    def _keep_going(self) -> None:
        try:
            with alone(f"\0satrap controller {self._name}", self._patience) as name:
                code = self._run(name.fileno())
                while code < 0 and not self._stopped and self._restarts:
                    self._restarts -= 1
                    self._say(f"satrap train was killed by {signal.Signals(-code).name}; restarting")
                    code = self._run(name.fileno())
        except (SatrapError, OSError) as error:
            self._say(f"error: {error}")
            code = 1
        with self._lock:
            self._code = code
            self._lock.notify_all()

    def _run(self, name: int) -> int:
        """Run the command once and return its exit code."""
        environment = {key: value for key, value in variables().items() if key not in _OF_A_WORKER}
        with self._lock:
            if self._stopped:
                return 1
            self._process = subprocess.Popen(
                [sys.executable, *self._command],
                cwd=self._folder,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                pass_fds=[name],
                start_new_session=True,
            )
        with self._process as process:
            assert process.stdout is not None
            for line in process.stdout:
                self._say(line.rstrip("\n"))
        return process.returncode

    def _say(self, line: str) -> None:
        with self._lock:
            self._lines.append(line)
            surplus = max(len(self._lines) - KEPT_LINES, 0)
            del self._lines[:surplus]
            self._first += surplus
            self._lock.notify_all()

    def said(self, born: int, have: int, seconds: float) -> tuple[int, int, list[str], int | None]:
        """Return new output lines; wait at most `seconds` for one.

        Args:
            born: birth time of the controller whose lines the caller has, 0 for none.
            have: number of lines that the caller has.
            seconds: see above.

        Returns:
            (birth time of this controller, number of the first line, lines, exit code after the end).
        """
        with self._lock:
            have = have if born == self._born else 0
            news = lambda: self._first + len(self._lines) > have or self._code is not None  # noqa: E731
            self._lock.wait_for(news, seconds)
            first = max(have, self._first)
            return self._born, first, self._lines[first - self._first :], self._code

    def stop(self) -> None:
        """Make the run save and end."""
        with self._lock:
            self._stopped = True
            if self._process is not None and self._process.poll() is None:
                os.kill(self._process.pid, signal.SIGINT)


def detach(keys: ClusterKeys, folder: Path, command: Sequence[str]) -> None:
    """Start the controller of the run in a folder; for the command see `Controller`.

    Raises:
        ConfigError: Ray is not installed or cannot be reached, or the run already has a controller.
        ExchangeError: Ray did not start the controller.
    """
    ray = _connected(keys)
    if _found(ray, folder) is not None:
        raise ConfigError(
            f"the run in {folder} already has a controller",
            why="two programs would train the same run at once",
            fix=f"to follow the run: satrap train --output {folder} --attach",
        )
    actor = ray.remote(Controller).options(
        name=_name(folder),
        namespace=_NAMESPACE,
        lifetime="detached",
        num_cpus=0,
        max_restarts=-1,
        max_concurrency=8,  # several followers and a stop request
    )
    controller = actor.remote(
        list(command), os.getcwd(), _name(folder), restarts=keys.restarts, patience=keys.grace + 30.0
    )
    try:
        ray.get(controller.said.remote(0, 0, 0.0), timeout=START_SECONDS)
    except (ray.exceptions.RayError, TimeoutError) as error:
        ray.kill(controller)
        raise ExchangeError("Ray did not start the controller of the run", why=last_line(error)) from error


def attach(keys: ClusterKeys, folder: Path, show: Callable[[str], None], *, stop: bool = False) -> int:
    """Show the output of a detached run until it ends; return its exit code, and end its controller.

    Args:
        keys: `cluster` keys of the run's recipe.
        folder: the run folder.
        show: called with each line.
        stop: make the run save and end first.

    Raises:
        ConfigError: Ray is not installed or cannot be reached, or the run has no controller.
        ExchangeError: the controller died, and Ray did not restart it.
    """
    ray = _connected(keys)
    controller = _found(ray, folder)
    if controller is None:
        raise ConfigError(
            f"the run in {folder} has no controller",
            why="the run ended and its output was shown, or it was started without --detach",
            fix=f"to see its progress: satrap report {folder}; to continue: satrap train ... --detach",
        )
    code: int | None = None
    born, have, heard = 0, 0, time.monotonic()
    while code is None:
        try:
            if stop:
                ray.get(controller.stop.remote(), timeout=START_SECONDS)
                stop = False
            answer = controller.said.remote(born, have, ANSWER_SECONDS)
            came, first, lines, code = ray.get(answer, timeout=START_SECONDS)
        except (ray.exceptions.RayError, TimeoutError) as error:
            if time.monotonic() - heard > FOUND_SECONDS:
                raise ExchangeError(
                    "the controller of the run does not answer",
                    why=last_line(error),
                    fix=f"when its node is back: satrap train --output {folder} --attach",
                ) from error
            time.sleep(_TICK)
            continue
        if born not in (0, came):
            show("a new controller continues the run")
        if missed := first - (have if born == came else 0):
            show(f"({missed:,} earlier lines were dropped)")
        for line in lines:
            show(line)
        born, have, heard = came, first + len(lines), time.monotonic()
    ray.kill(controller)
    return code


def _connected(keys: ClusterKeys) -> Any:
    """Return the package `ray`, connected to the cluster of a recipe."""
    if keys.launcher != "ray" or keys.address is None:
        raise ConfigError(
            "a run can only be detached on a Ray cluster",
            where="cluster.launcher, cluster.address",
            why="a detached run needs a controller that outlives this program",
            fix="set cluster.launcher: ray and cluster.address: HOST:PORT or auto",
        )
    ray = ray_module()
    if not ray.is_initialized():
        join(keys.address)
    return ray


def _found(ray: Any, folder: Path) -> Any:
    try:
        return ray.get_actor(_name(folder), namespace=_NAMESPACE)
    except ValueError:
        return None


def _name(folder: Path) -> str:
    return str(folder.absolute())
