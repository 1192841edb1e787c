"""A catalog of made-up machines, and what a model demands of them."""

from __future__ import annotations

from satrap.plan import Workload
from satrap.tools.plan.cluster import Demand
from satrap.tools.plan.cluster.machines import Catalog, Machine
from tests.plan.loads import load

BIG = Machine("a/big", "shards", memory=1024, cores=100, network=80, price=10.0)
SMALL = Machine("a/small", "shards", memory=256, cores=10, network=8, price=2.0)
GPUS = Machine("a/gpus", "workers", memory=64, cores=8, network=80, price=20.0, gpus=8, tflops=100.0)
ELSEWHERE = Machine("b/gpus", "workers", memory=64, cores=8, network=80, price=1.0, gpus=1, tflops=1.0)
CATALOG = Catalog({kind.name: kind for kind in (BIG, SMALL, GPUS, ELSEWHERE)}, "a test")


def demand(parameters: float = 1.6e11, dense: int = 1000) -> Demand:
    """Rows of 16 float32 with a row-wise state: 92 bytes with their index; two distinct ids per sample."""
    table = load("t", dim=16, weight_bytes=64, state_bytes=4, rows=1000, distinct=2000)
    return Demand.of(Workload((table,), batch_size=1000, steps=1), parameters, 1e6, dense)
