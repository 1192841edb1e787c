"""Setup and outcome of a simulation."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from satrap.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Setup:
    """A training to simulate.

    Args:
        exchange: "local", "servers" or "collective".
        mode: "sync", "hybrid" or "async".
        ahead: lookups issued ahead of their step: staleness, or in sync mode lookahead.
        workers: number of training workers.
        shards: shard servers; unused by the other exchanges.
        samples: samples of one worker's batch.
        rows, values, dense: see `Measured`.
        cores: cores of each host.
        together: whether all processes share one host, the default; else each has its own host.
        bandwidth: bytes/s that a host sends and receives at the same time; unused on one host.
        latency: seconds of a message in flight, in addition to the calibrated time; default 0.
        steps: steps to simulate, default 200; the first fifth does not count.
        jitter: standard deviation of each piece of work, as a fraction of its mean; default as calibrated.
        hot: work of the first shard relative to the others; default 1.
        straggler: compute time of worker 0 relative to the others; default 1.
        lost: seconds for which the first shard is unavailable in the middle of the run; default 0.
        background: additional bytes/s sent by every shard's host: snapshots, resharding; default 0.
        seed: of the random numbers, default 1.

    Raises:
        ConfigError: a number is out of range.
    """

    exchange: str
    mode: str
    ahead: int
    workers: int
    shards: int
    samples: float
    rows: float
    values: float
    dense: float
    cores: float
    together: bool = True
    bandwidth: float = 1.25e9
    latency: float = 0.0
    steps: int = 200
    jitter: float | None = None
    hot: float = 1.0
    straggler: float = 1.0
    lost: float = 0.0
    background: float = 0.0
    seed: int = 1

    def __post_init__(self) -> None:
        for name in ("workers", "shards", "samples", "cores", "bandwidth", "hot", "straggler"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be above 0, got {getattr(self, name)}", where="a simulation")
        for name in ("ahead", "latency", "lost", "background"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must be >= 0", where="a simulation")
        if self.steps < 10:
            raise ConfigError(f"steps must be at least 10, got {self.steps}", where="a simulation")
        if self.background >= self.bandwidth:
            raise ConfigError(
                "background traffic takes the whole network of a shard",
                fix="increase the bandwidth, or slow down snapshots",
            )


@dataclass(slots=True)
class SimulationResult:
    """Outcome of a simulation, without warm-up steps.

    Args:
        setup: the simulated setup.
        seconds: time between the first and the last counted step of worker 0.
        steps: number of counted steps.
        taken: seconds of each counted step of worker 0.
        lookups: seconds from issue to rows, of worker 0.
        own: staleness: own updates missed by a lookup -> number of lookups.
        others: other workers' updates missed by a lookup -> number of lookups.
        shard_busy: fraction of time that each shard worked.
        core_seconds: CPU seconds of all hosts.
        issued, applied: updates of all workers.
        sent, received: bytes of one worker's step.
    """

    setup: Setup
    seconds: float = 0.0
    steps: int = 0
    taken: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    lookups: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    own: Counter[int] = field(default_factory=Counter)
    others: Counter[int] = field(default_factory=Counter)
    shard_busy: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    core_seconds: float = 0.0
    issued: int = 0
    applied: int = 0
    sent: float = 0.0
    received: float = 0.0

    @property
    def samples_per_second(self) -> float:
        """Samples per second of all workers."""
        return self.setup.workers * self.setup.samples * self.steps / self.seconds

    @property
    def step_seconds(self) -> float:
        """Mean seconds per step."""
        return self.seconds / self.steps

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as plain data, with distributions as quantiles in seconds."""
        marks = (50, 90, 99, 100)

        def quantiles(values: npt.NDArray[np.float64]) -> dict[str, float]:
            return {f"p{m}": float(np.percentile(values, m)) for m in marks} if len(values) else {}

        return {
            "setup": asdict(self.setup),
            "samples_per_second": self.samples_per_second,
            "step_seconds": {"mean": self.step_seconds, **quantiles(self.taken)},
            "lookup_seconds": quantiles(self.lookups),
            "staleness": {"own": dict(sorted(self.own.items())), "others": dict(sorted(self.others.items()))},
            "shard_busy": {
                "mean": float(self.shard_busy.mean()) if len(self.shard_busy) else 0.0,
                "max": float(self.shard_busy.max(initial=0.0)),
            },
            "core_seconds": self.core_seconds,
        }
