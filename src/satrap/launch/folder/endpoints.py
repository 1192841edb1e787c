"""Metrics endpoints of the processes of a run."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from satrap.config import Recipe
from satrap.config.keys.cluster import ClusterKeys
from satrap.openmetrics import Endpoint, worker_values
from satrap.runtime.events import MetricsServed, Report
from satrap.train import Trainer


def metrics_address(keys: ClusterKeys, number: int) -> str | None:
    """Return HOST:PORT of a process's endpoint, None without one; `number` counts shards first."""
    if keys.metrics_port is None:
        return None
    host = f"[{keys.metrics_host}]" if ":" in keys.metrics_host else keys.metrics_host
    return f"{host}:{keys.metrics_port and keys.metrics_port + number}"


def worker_endpoint(
    recipe: Recipe, trainer: Trainer, notice: Callable[[str], None], report: Report = lambda _: None
) -> AbstractContextManager[object]:
    """Return the endpoint of a worker as a context, which does nothing without `cluster.metrics_port`.

    `report` is called with `MetricsServed`.
    """
    keys, rank = recipe.sections.cluster, trainer.workers.rank
    if keys.metrics_port is None:
        return nullcontext()
    number = rank + keys.servers
    endpoint: Endpoint = recipe.located(
        ("cluster", "metrics_port"),
        Endpoint,
        keys.metrics_host,
        keys.metrics_port and keys.metrics_port + number,
        lambda: worker_values(rank, trainer.run.progress, trainer.exchange.telemetry.traffic()),
    )
    notice(f"worker {rank}: metrics on http://{endpoint.address}/metrics")
    report(MetricsServed(endpoint.reached))
    return endpoint
