"""What is simulated, and what was found."""

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
        ahead: lookups that run ahead of their step: staleness, or in sync lookahead.
        workers: how many train.
        shards: shard servers; unused by the other exchanges.
        samples: of one worker's batch.
        rows, values, dense: see `Measured`.
        cores: of each host.
        together: all processes are on one host, the default; else each has a host of its own.
        bandwidth: bytes/s that a host sends, and at the same time receives; unused on one host.
        latency: seconds that a message is under way, besides what was calibrated; default 0.
        steps: to simulate, default 200; the first fifth does not count.
        jitter: standard deviation of each piece of work, as a share of its mean; default as calibrated.
        hot: work of the first shard, as a multiple of the others'; default 1.
        straggler: how much longer worker 0 computes; default 1.
        lost: seconds for which the first shard is away in the middle of the run; default 0.
        background: bytes/s that every shard's host sends besides: snapshots, rows that move; default 0.
        seed: of the random numbers, default 1.

    Raises:
        ConfigError: a number out of its range.
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
                raise ConfigError(f"{name} must not be below 0", where="a simulation")
        if self.steps < 10:
            raise ConfigError(f"steps must be at least 10, got {self.steps}", where="a simulation")
        if self.background >= self.bandwidth:
            raise ConfigError(
                "other traffic takes the whole network of a shard",
                fix="give more bandwidth, or slower snapshots",
            )


@dataclass(slots=True)
class Outcome:
    """What a simulation found; warm-up steps are left out.

    Args:
        setup: what was simulated.
        seconds: between the first and the last counted step of worker 0.
        steps: counted steps.
        taken: seconds of each counted step of worker 0.
        lookups: seconds from issue to rows, of worker 0.
        own: staleness: own updates that a lookup did not see -> lookups.
        others: other workers' updates that a lookup did not see -> lookups.
        shard_busy: share of its time that each shard worked.
        core_seconds: processor seconds of all hosts.
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
        """Of all workers."""
        return self.setup.workers * self.setup.samples * self.steps / self.seconds

    @property
    def step_seconds(self) -> float:
        """Mean seconds from step to step."""
        return self.seconds / self.steps

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data, distributions as quantiles in seconds."""
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
