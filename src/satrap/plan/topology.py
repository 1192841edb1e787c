"""The workers that tables are placed at: their memory, their speed, and what lies between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from satrap.errors import ConfigError

BANDWIDTH = 1.25e9
"""Bytes/s assumed between workers: 10 Gbit/s Ethernet."""
LATENCY = 200e-6
"""Seconds assumed for an all-to-all that carries nearly nothing: gloo over one switch."""


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast one worker handles rows of one width.

    Args:
        lookups: rows/s that it finds and copies.
        updates: rows/s that it takes an optimizer step for.
    """

    lookups: float
    updates: float

    def seconds(self, looked_up: float, updated: float) -> float:
        """Return the seconds that so many rows take."""
        return looked_up / self.lookups + updated / self.updates


def assumed(dim: int) -> Rates:
    """Return the rates assumed for rows of `dim` weights.

    Lines through what `benchmarks.store` of 2026-11-22 measured with row-wise Adagrad in float32 on one core
    of an AMD EPYC, at dims 16, 64 and 128: lookups, and updates of rows whose slots are known.
    """
    return Rates(lookups=1e9 / (10 + 0.3 * dim), updates=1e9 / (1 + 0.4 * dim))


@dataclass(frozen=True, slots=True)
class Topology:
    """Workers that are all alike, any two of them equally far apart.

    Args:
        workers: how many, >= 1.
        memory: bytes for rows and their index at each worker.
        bandwidth: bytes/s that a worker sends, and at the same time receives; default 1.25e9.
        latency: seconds of an all-to-all that carries nearly nothing, default 200e-6.
        rates: dim -> rows/s; for a dim that is not there, `assumed`.
        bounded_by: "eviction" or "admission" if all tables have one, and so must be row_wise; default none.
            With eviction, rows that do not fit leave memory.
        memory_from: where the memory comes from, in words.
        speeds_from: where bandwidth, latency and rates come from, in words; default "assumed".

    Raises:
        ConfigError: a number that is not above 0.
    """

    workers: int
    memory: float
    bandwidth: float = BANDWIDTH
    latency: float = LATENCY
    rates: Mapping[int, Rates] = field(default_factory=dict)
    bounded_by: str = ""
    memory_from: str = "given"
    speeds_from: str = "assumed"

    def __post_init__(self) -> None:
        numbers = {f.name: getattr(self, f.name) for f in fields(self)[:4]}
        for dim, rates in self.rates.items():
            numbers |= {f"lookups of dim {dim}": rates.lookups, f"updates of dim {dim}": rates.updates}
        for name, value in numbers.items():
            if not value > 0:
                raise ConfigError(f"{name} must be above 0, got {value:g}", where="what a plan is made for")

    @property
    def evicts(self) -> bool:
        """Whether rows that do not fit leave memory, instead of ending the run."""
        return self.bounded_by == "eviction"

    def rates_of(self, dim: int) -> Rates:
        """Return the rates for rows of `dim` weights."""
        return self.rates.get(dim) or assumed(dim)
