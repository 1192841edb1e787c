"""Metrics of the roles of a real run, read where Ray publishes its own."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from satrap.config.keys.cluster import ClusterKeys
from satrap.launch.launchers.launcher import Role, Stop
from satrap.launch.launchers.ray_launcher import RayLauncher
from tests.cluster.runs import eventually
from tests.launch.launchers.ray_nodes import Nodes
from tests.support.roles import MEASURED

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]


def published(nodes: Nodes, run: str) -> dict[tuple[str, str, str, str], float]:
    """Return the samples of a run at the metrics ports of all nodes, by name, role, number and kind."""
    found = {}
    for node in nodes.ray.nodes():
        if not node["Alive"]:
            continue
        url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
        with urllib.request.urlopen(url, timeout=30) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        for sample in (sample for family in families for sample in family.samples):
            labels = sample.labels
            if labels.get("run") == run:
                key = (sample.name, labels["role"], labels["number"], labels.get("kind", ""))
                found[key] = sample.value
    return found


def test_the_metrics_of_roles_are_among_those_of_ray(nodes: Nodes, tmp_path: Path) -> None:
    keys = ClusterKeys(exchange="servers", launcher="ray", shards=2)
    launcher = RayLauncher(keys, run="gauges", folder="/", needs=(), notice=print, label="of-gauges")
    try:
        for name in ("shard 0", "shard 1"):
            launcher.start(Role(name, ["-c", MEASURED]))

        def shown() -> bool:
            launcher.events(0.5)
            found = published(nodes, "of-gauges")
            return all(
                found.get(("ray_satrap_shard_rows", "shard", number, "")) == 7
                and found.get(("ray_satrap_shard_requests_total", "shard", number, "lookup")) == 3
                and found.get(("ray_satrap_process_resident_memory_bytes", "shard", number, ""), 0) > 1e6
                for number in "01"
            )

        assert eventually(shown, 60), published(nodes, "of-gauges")
        launcher.stop("shard 0", Stop.RELEASE)
        launcher.stop("shard 1", Stop.RELEASE)
    finally:
        launcher.close()
