"""A Ray cluster of several nodes on this machine."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from satrap.config.keys.cluster import ClusterKeys
from satrap.launch.launchers.ray_launcher import RayLauncher
from tests.cluster.runs import ROLES

SMALL = 80 << 20
"""Bytes of a node's object store, almost the least that Ray takes."""

QUICK = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
    "worker_niceness": 0,
    "worker_oom_score_adjustment": 0,
}
"""With Ray's own settings a dead node is noticed after 13 seconds."""


@dataclass(frozen=True)
class Role:
    """A process of a run, of a kind such as "shard", and the process of its agent; on a node."""

    kind: str
    pid: int
    agent: int
    node: Any


class Nodes:
    """Nodes with so many processors each; this process is on the first. Use it as a context.

    Attributes:
        cluster: the `ray.cluster_utils.Cluster`.
        ray: the module, connected.
    """

    def __init__(self, cpus: Sequence[int]) -> None:
        self._cpus = cpus

    def __enter__(self) -> Nodes:
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        import ray
        from ray.cluster_utils import Cluster

        self.ray = ray
        first = {"num_cpus": self._cpus[0], "_system_config": QUICK, "include_dashboard": False}
        self.cluster = Cluster(True, head_node_args={"object_store_memory": SMALL, **first})
        for count in self._cpus[1:]:
            self.add(count)
        ray.init(address=self.cluster.address, log_to_driver=False, logging_level="ERROR")
        return self

    def add(self, cpus: int, **resources: float) -> Any:
        return self.cluster.add_node(num_cpus=cpus, object_store_memory=SMALL, resources=resources)

    def free(self, seconds: float = 30.0) -> float:
        """Return the processors that nobody has reserved, once that are all, at most so much later."""
        limit = time.monotonic() + seconds
        while True:
            free = self.ray.available_resources().get("CPU", 0.0)
            if free == self.ray.cluster_resources()["CPU"] or time.monotonic() > limit:
                return float(free)
            time.sleep(0.1)

    def later(self, seconds: float, do: Callable[[], None]) -> threading.Timer:
        """Do something in a while, in another thread."""
        timer = threading.Timer(seconds, do)
        timer.start()
        return timer

    def roles(self) -> list[Role]:
        """Return the processes of roles that run now."""
        raylets, parents, found = self._raylets(), _parents(), []
        for pid, agent in sorted(parents.items()):
            words = _words(pid)
            kind = "worker" if "satrap.launch" in words else next(filter(ROLES.__contains__, words), None)
            if kind and parents.get(agent) in raylets:
                found.append(Role(kind, pid, agent, raylets[parents[agent]]))
        return found

    def actors(self, name: str) -> list[tuple[int, Any]]:
        """Return process and node of the actors of a class."""
        raylets = self._raylets()
        parents = sorted(_parents().items())
        return [
            (pid, raylets[parent])
            for pid, parent in parents
            if parent in raylets and _words(pid)[0].startswith(f"ray::{name}")
        ]

    def _raylets(self) -> dict[int, Any]:
        return {node.all_processes["raylet"][0].process.pid: node for node in self.cluster.list_all_nodes()}

    def remove(self, node: Any) -> None:
        """Kill a node."""
        self.cluster.remove_node(node, allow_graceful=False)

    def __exit__(self, *_: object) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(self.cluster.shutdown)
            stack.callback(self.ray.shutdown)


def _parents() -> dict[int, int]:
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    return found


def _words(pid: int) -> list[str]:
    """Return the command of a process; an empty word if it has ended."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    return [""]


def launcher(keys: ClusterKeys, said: list[str]) -> RayLauncher:
    return RayLauncher(keys, run="a", folder="/", needs=(), notice=said.append)
