"""The workers that hold tables: their memory, their speed and their network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from satrap.errors import ConfigError

BANDWIDTH = 1.25e9
"""Assumed bytes/s between workers: 10 Gbit/s Ethernet."""
LATENCY = 200e-6
"""Assumed seconds of an almost empty all-to-all: gloo over one switch."""


@dataclass(frozen=True, slots=True)
class WorkerRates:
    """Speed of one worker for rows of one width.

    Args:
        lookups: rows/s found and copied.
        updates: rows/s updated by the optimizer.
    """

    lookups: float
    updates: float

    def seconds(self, looked_up: float, updated: float) -> float:
        """Return the seconds for a number of lookups and updates."""
        return looked_up / self.lookups + updated / self.updates


def assumed(dim: int) -> WorkerRates:
    """Return the assumed rates for rows of `dim` weights.

    Linear fits to `benchmarks.store` of 2026-11-22, measured with row-wise Adagrad in float32 on one core
    of an AMD EPYC, at dims 16, 64 and 128: lookups, and updates of rows whose slots are known.
    """
    return WorkerRates(lookups=1e9 / (10 + 0.3 * dim), updates=1e9 / (1 + 0.4 * dim))


@dataclass(frozen=True, slots=True)
class Topology:
    """Identical workers, connected uniformly.

    Args:
        workers: number of workers, >= 1.
        memory: bytes for rows and their index at each worker.
        bandwidth: bytes/s that a worker sends and receives at the same time; default 1.25e9.
        latency: seconds of an almost empty all-to-all, default 200e-6.
        rates: dim -> rows/s; `assumed` for other dims.
        bounded_by: "eviction" or "admission" if all tables have it, so they must be row_wise; default none.
            With eviction, rows that do not fit leave memory.
        memory_from: source of the memory, as text.
        speeds_from: source of bandwidth, latency and rates, as text; default "assumed".

    Raises:
        ConfigError: a number is not above 0.
    """

    workers: int
    memory: float
    bandwidth: float = BANDWIDTH
    latency: float = LATENCY
    rates: Mapping[int, WorkerRates] = field(default_factory=dict)
    bounded_by: str = ""
    memory_from: str = "given"
    speeds_from: str = "assumed"

    def __post_init__(self) -> None:
        numbers = {f.name: getattr(self, f.name) for f in fields(self)[:4]}
        for dim, rates in self.rates.items():
            numbers |= {f"lookups of dim {dim}": rates.lookups, f"updates of dim {dim}": rates.updates}
        for name, value in numbers.items():
            if not value > 0:
                raise ConfigError(f"{name} must be above 0, got {value:g}", where="topology of the plan")

    @property
    def evicts(self) -> bool:
        """Whether rows that do not fit are evicted, instead of ending the run."""
        return self.bounded_by == "eviction"

    def rates_of(self, dim: int) -> WorkerRates:
        """Return the rates for rows of `dim` weights."""
        return self.rates.get(dim) or assumed(dim)
