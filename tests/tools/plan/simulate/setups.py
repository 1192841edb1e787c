"""A made-up cluster to simulate, and what its steps cost."""

from __future__ import annotations

from typing import Any

from satrap.tools.plan.simulate.cluster import StepWork
from satrap.tools.plan.simulate.setup import Setup

SOME = StepWork(1e-3, 4e-3, 1e-3, 4e-4, 5e-4, 6e-4, lookup=1.5e-3, update=1.2e-3, hop=1e-4, meet=3e-4)


def setup(exchange: str = "servers", mode: str = "sync", ahead: int = 0, **more: Any) -> Setup:
    known = {
        "workers": 1,
        "shards": 1,
        "samples": 100,
        "rows": 400,
        "values": 6400,
        "dense": 1e4,
        "cores": 64,
    }
    return Setup(exchange, mode, ahead, **{**known, **more})
