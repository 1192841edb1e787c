"""A Ray cluster of several nodes on this machine."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Any

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

    def remove(self, node: Any) -> None:
        """Kill a node."""
        self.cluster.remove_node(node, allow_graceful=False)

    def __exit__(self, *_: object) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(self.cluster.shutdown)
            stack.callback(self.ray.shutdown)
