"""A pool of workers on a Ray cluster that write parts; they exit with the process that started them."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import satrap
from satrap.errors import ConfigError, DataError, SatrapError
from satrap.launch.launchers.ray_cluster import join, last_line, ray_module
from satrap.tools.prepare.pool import Work

OPTION = "--ray"

PLACE_SECONDS = 180.0
"""Seconds for Ray to start the first worker, which may load satrap from slow storage."""

DEATHS = 3
"""Deaths of workers on the same task before the work fails."""

_TICK = 1.0


@dataclass(slots=True)
class _Task:
    """The rest of a task, and the number of workers that died while processing it."""

    left: Any
    deaths: int = 0


class TaskActor:
    """Processes tasks on this node, one after another; a plain class that Ray makes an actor.

    Expected errors are returned with the name of the node, because Ray would wrap raised exceptions.

    Args:
        make: called once, see `satrap.tools.prepare.pool.results`.
        arguments: arguments of `make`.
        folder: working folder.
        version: satrap version of the main process.
        address: returns the address of this node.
    """

    def __init__(
        self,
        make: Callable[..., Work],
        arguments: Any,
        folder: str,
        version: str,
        address: Callable[[], str],
    ) -> None:
        self._make, self._arguments, self._folder, self._version = make, arguments, folder, version
        self._node = address()
        self._work: Work | None = None
        self._results: Iterator[Any] = iter(())

    def begin(self) -> SatrapError | None:
        """Initialize; return the error if that fails."""
        failure: SatrapError | None = self._named(self._begin)
        return failure

    def _begin(self) -> None:
        if satrap.__version__ != self._version:
            raise ConfigError(
                f"the node has satrap {satrap.__version__}, but this machine has {self._version}",
                why="different versions might write different files",
                fix="install the same version on all nodes",
            )
        if not Path(self._folder).is_dir():
            raise ConfigError(
                "the node does not have the current folder",
                where=self._folder,
                why="relative paths in the recipe start in that folder",
                fix="run satrap prepare in a folder that exists at the same path on all nodes",
            )
        os.chdir(self._folder)
        self._work = self._make(*self._arguments)

    def first(self, task: Any) -> Any:
        """Start a task; return the same as `next`."""
        assert self._work is not None
        self._results = self._work(task)
        return self.next()

    def next(self) -> Any:
        """Return the next result, None after the last one, or the error."""
        return self._named(lambda: next(self._results, None))

    def _named(self, do: Callable[[], Any]) -> Any:
        try:
            return do()
        except SatrapError as error:
            where = f"{error.where}, on node {self._node}" if error.where else f"node {self._node}"
            return type(error)(error.what, where=where, why=error.why, fix=error.fix)
        except OSError as error:
            return DataError(f"a part cannot be written: {error}", where=f"node {self._node}")


def results(
    make: Callable[..., Work],
    arguments: Any,
    tasks: Iterator[Any],
    after: Callable[[Any, Any], Any],
    *,
    address: str,
    workers: int | None,
    notice: Callable[[str], object],
) -> Iterator[Any]:
    """Yield the results of `make(*arguments)(task)` for each task, in order of completion.

    The work runs on the nodes of a Ray cluster, in actors with one CPU each. If an actor dies, another one
    does the rest of its task.

    Args:
        make: called once in each actor; importable on all nodes.
        arguments: arguments of `make`; picklable, like tasks and results.
        tasks: consumed when an actor is free.
        after: returns the rest of a task after one of its results, None after the last.
        address: address of the cluster, HOST:PORT or "auto".
        workers: number of concurrent tasks; None: the number of CPUs in the cluster now.
        notice: called with each line for the user.

    Raises:
        ConfigError: Ray is not installed, is unreachable, or does not start a worker.
        DataError: several workers died on the same task.
        SatrapError: the work failed.
    """
    ray = ray_module(OPTION)
    ours = not ray.is_initialized()
    if ours:
        join(address, where=OPTION)
    pool = None
    try:
        count = workers or int(ray.cluster_resources().get("CPU", 0))
        if not count:
            raise ConfigError(
                "the Ray cluster has no CPUs",
                where=OPTION,
                fix="add nodes; if the cluster scales automatically, set --processes P",
            )
        pool = _Pool(ray, (make, arguments, os.getcwd(), satrap.__version__), count, notice)
        yield from pool.results(tasks, after)
    finally:
        if pool is not None:
            pool.close()
        if ours:
            ray.shutdown()


class _Pool:
    """Actors and their tasks."""

    def __init__(self, ray: Any, arguments: Any, count: int, notice: Callable[[str], object]) -> None:
        self._ray, self._arguments, self._count, self._notice = ray, arguments, count, notice
        self._waiting: deque[_Task] = deque()  # tasks without an actor
        self._alive: set[Any] = set()
        self._free: list[Any] = []
        self._starting: dict[Any, Any] = {}  # pending result -> actor
        self._busy: dict[Any, tuple[Any, _Task]] = {}
        self._lost = 0  # consecutive deaths of actors during start-up
        self._heard = time.monotonic()

    def results(self, tasks: Iterator[Any], after: Callable[[Any, Any], Any]) -> Iterator[Any]:
        following = next(tasks, None)
        while following is not None or self._waiting or self._busy:
            while following is not None and len(self._waiting) + len(self._busy) < self._count:
                self._waiting.append(_Task(following))
                following = next(tasks, None)
            self._give()
            answers = [*self._starting, *self._busy]
            ready, _ = self._ray.wait(answers, num_returns=len(answers), timeout=0)
            ready = ready or self._ray.wait(answers, timeout=_TICK)[0]
            for answer in ready:
                yield from self._received(answer, after)
            self._check_time(bool(ready))

    def _give(self) -> None:
        """Assign tasks to free actors; start one actor for each task that still waits."""
        while self._waiting and self._free:
            task, actor = self._waiting.popleft(), self._free.pop()
            self._busy[actor.first.remote(task.left)] = actor, task
        while len(self._starting) < len(self._waiting):
            from ray.util import get_node_ip_address

            actor = self._ray.remote(TaskActor).options(
                num_cpus=1, max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD"
            )
            made = actor.remote(*self._arguments, get_node_ip_address)
            self._alive.add(made)
            self._starting[made.begin.remote()] = made

    def _received(self, answer: Any, after: Callable[[Any, Any], Any]) -> Iterator[Any]:
        """Yield an actor's result, if any; record that the actor is free or dead."""
        task: _Task | None = None
        if answer in self._starting:
            actor = self._starting.pop(answer)
        else:
            actor, task = self._busy.pop(answer)
        try:
            result = self._ray.get(answer)
        except self._ray.exceptions.RayTaskError as error:
            raise _unstartable(error) if task is None else error from None
        except self._ray.exceptions.RayError as error:
            self._alive.remove(actor)
            self._ray.kill(actor)
            self._died(task, error)
            return
        if isinstance(result, SatrapError):
            raise result
        self._lost = 0
        if task is not None and result is not None:
            task.left, task.deaths = after(task.left, result), 0
            if task.left is not None:
                self._busy[actor.next.remote()] = actor, task
                yield result
                return
        self._free.append(actor)
        if result is not None:
            yield result

    def _died(self, task: _Task | None, error: Exception) -> None:
        """Reschedule the rest of a dead actor's task."""
        why = last_line(error)
        if task is None:
            self._lost += 1
            if getattr(error, "actor_init_failed", False) or self._lost > DEATHS * self._count:
                raise _unstartable(error) from None
            return
        task.deaths += 1
        if task.deaths >= DEATHS:
            raise DataError(
                f"{task.deaths} Ray workers died while writing the same part",
                where=str(task.left),
                why=why,
                fix="check the nodes for lack of memory, then run the same command to resume",
            ) from None
        self._notice(f"a Ray worker died, and its part is written again: {why}")
        self._waiting.appendleft(task)

    def _check_time(self, heard: bool) -> None:
        """Raise `ConfigError` if no actor works and none has become ready for `PLACE_SECONDS`."""
        now = time.monotonic()
        if heard or self._busy:
            self._heard = now
        elif now - self._heard > PLACE_SECONDS:
            have = self._ray.cluster_resources().get("CPU", 0)
            free = self._ray.available_resources().get("CPU", 0)
            raise ConfigError(
                f"Ray did not start a worker in {PLACE_SECONDS:g} s",
                where=OPTION,
                why=f"the cluster has {have:g} CPUs, {free:g} of them free",
                fix="wait for free CPUs or add nodes, then run the same command to resume",
            )

    def close(self) -> None:
        for actor in self._alive:
            self._ray.kill(actor)


def _unstartable(error: Exception) -> ConfigError:
    return ConfigError(
        "Ray could not start a worker",
        where=OPTION,
        why=last_line(error),
        fix="install satrap on all nodes, in the environment of ray start",
    )
