"""Workers on the nodes of a Ray cluster that write parts; they end with the process that started them."""

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
from satrap.launchers.ray_cluster import join, last_line, ray_module
from satrap.prepare.pool import Work

OPTION = "--ray"

PLACE_SECONDS = 180.0
"""Seconds for Ray to start a first worker: it may have to load satrap from slow storage."""

DEATHS = 3
"""Workers that may die of the same task."""

_TICK = 1.0


@dataclass(slots=True)
class _Task:
    """What is left of a task, and how many workers have died of it."""

    left: Any
    deaths: int = 0


class Writer:
    """Does tasks on this node, one after another; a plain class, which Ray makes an actor.

    What can be expected to go wrong is returned, with the name of the node: Ray would wrap what is raised.

    Args:
        make: called once, as in `satrap.prepare.pool.results`.
        arguments: of `make`.
        folder: where it works.
        version: of satrap, where the results are awaited.
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
        """Make ready; return why that is impossible, if it is."""
        failure: SatrapError | None = self._named(self._begin)
        return failure

    def _begin(self) -> None:
        if satrap.__version__ != self._version:
            raise ConfigError(
                f"the node has satrap {satrap.__version__}, and this is {self._version}",
                why="they might write other files",
                fix="install the same version on all nodes",
            )
        if not Path(self._folder).is_dir():
            raise ConfigError(
                "the node does not have the current folder",
                where=self._folder,
                why="paths of the recipe begin there",
                fix="call satrap prepare from a folder that all nodes have at the same place",
            )
        os.chdir(self._folder)
        self._work = self._make(*self._arguments)

    def first(self, task: Any) -> Any:
        """Begin a task; return as `next` does."""
        assert self._work is not None
        self._results = self._work(task)
        return self.next()

    def next(self) -> Any:
        """Return the next result, None after the last, or what went wrong."""
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
    """Yield what `make(*arguments)(task)` yields for each task, in the order it is ready.

    The work is done on the nodes of a Ray cluster, by actors with one CPU each. If one dies, another does
    what is left of its task.

    Args:
        make: called once in each actor; importable on all nodes.
        arguments: of `make`; can be pickled, as tasks and results.
        tasks: read when an actor is free.
        after: returns what is left of a task after one of its results, None if that was the last.
        address: of the cluster, HOST:PORT or "auto".
        workers: how many tasks are done at a time; None: as many as the cluster has processors now.
        notice: called with a line that the user should read.

    Raises:
        ConfigError: Ray is not installed, cannot be reached, or does not start a worker.
        DataError: several workers have died of the same task.
        SatrapError: of the work.
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
                "the Ray cluster has no processors",
                where=OPTION,
                fix="add nodes; if it adds some by itself when asked, say how many: --processes P",
            )
        pool = _Pool(ray, (make, arguments, os.getcwd(), satrap.__version__), count, notice)
        yield from pool.results(tasks, after)
    finally:
        if pool is not None:
            pool.close()
        if ours:
            ray.shutdown()


class _Pool:
    """Actors, and what each is doing."""

    def __init__(self, ray: Any, arguments: Any, count: int, notice: Callable[[str], object]) -> None:
        self._ray, self._arguments, self._count, self._notice = ray, arguments, count, notice
        self._waiting: deque[_Task] = deque()  # for an actor
        self._alive: set[Any] = set()
        self._free: list[Any] = []
        self._starting: dict[Any, Any] = {}  # answer to come -> actor
        self._busy: dict[Any, tuple[Any, _Task]] = {}
        self._lost = 0  # actors that have died in a row before they were ready
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
        """Give tasks to actors; start as many actors as tasks still wait for one."""
        while self._waiting and self._free:
            task, actor = self._waiting.popleft(), self._free.pop()
            self._busy[actor.first.remote(task.left)] = actor, task
        while len(self._starting) < len(self._waiting):
            from ray.util import get_node_ip_address

            actor = self._ray.remote(Writer).options(
                num_cpus=1, max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD"
            )
            made = actor.remote(*self._arguments, get_node_ip_address)
            self._alive.add(made)
            self._starting[made.begin.remote()] = made

    def _received(self, answer: Any, after: Callable[[Any, Any], Any]) -> Iterator[Any]:
        """Yield an actor's result, if it is one; note when an actor is free, or dead."""
        task: _Task | None = None
        if answer in self._starting:
            actor = self._starting.pop(answer)
        else:
            actor, task = self._busy.pop(answer)
        try:
            found = self._ray.get(answer)
        except self._ray.exceptions.RayTaskError as error:
            raise _unstartable(error) if task is None else error from None
        except self._ray.exceptions.RayError as error:
            self._alive.remove(actor)
            self._ray.kill(actor)
            self._died(task, error)
            return
        if isinstance(found, SatrapError):
            raise found
        self._lost = 0
        if task is not None and found is not None:
            task.left, task.deaths = after(task.left, found), 0
            if task.left is not None:
                self._busy[actor.next.remote()] = actor, task
                yield found
                return
        self._free.append(actor)
        if found is not None:
            yield found

    def _died(self, task: _Task | None, error: Exception) -> None:
        """Have what is left of a dead actor's task done again."""
        why = last_line(error)
        if task is None:
            self._lost += 1
            if getattr(error, "actor_init_failed", False) or self._lost > DEATHS * self._count:
                raise _unstartable(error) from None
            return
        task.deaths += 1
        if task.deaths >= DEATHS:
            raise DataError(
                f"{task.deaths} workers on Ray have died while they wrote the same part",
                where=str(task.left),
                why=why,
                fix="look for a lack of memory on the nodes; the same command goes on",
            ) from None
        self._notice(f"a worker on Ray has died, and its part is written again: {why}")
        self._waiting.appendleft(task)

    def _check_time(self, heard: bool) -> None:
        """Raise `ConfigError` if no actor works, and none has become ready for long."""
        now = time.monotonic()
        if heard or self._busy:
            self._heard = now
        elif now - self._heard > PLACE_SECONDS:
            have = self._ray.cluster_resources().get("CPU", 0)
            free = self._ray.available_resources().get("CPU", 0)
            raise ConfigError(
                f"Ray has started no worker in {PLACE_SECONDS:g} s",
                where=OPTION,
                why=f"the cluster has {have:g} CPU, of which {free:g} are free",
                fix="wait until others have ended, or add nodes; the same command goes on",
            )

    def close(self) -> None:
        for actor in self._alive:
            self._ray.kill(actor)


def _unstartable(error: Exception) -> ConfigError:
    return ConfigError(
        "Ray could not start a worker",
        where=OPTION,
        why=last_line(error),
        fix="install satrap on all nodes, in the environment that ray start is called in",
    )
