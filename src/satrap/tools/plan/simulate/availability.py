"""Simulation of a run's hours with process deaths and snapshots."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np

from satrap.errors import ConfigError
from satrap.tools.plan.simulate.host import simpy


@dataclass(frozen=True, slots=True)
class Deaths:
    """Failures of a run, and its recovery.

    Args:
        workers, shards: processes that may die.
        mean_hours: mean time between two deaths of one process, exponentially distributed.
        restart: seconds until a dead process, or all workers, work again; default 60.
        snapshot_every: seconds between two snapshots; 0, the default: none, so a death restarts the run.
        snapshot_pause: seconds for which a snapshot stops the workers, default 0.
        journal: a dead shard recovers alone with all its rows; default False: all return to a snapshot.

    Raises:
        ConfigError: a number is out of range.
    """

    workers: int
    shards: int
    mean_hours: float
    restart: float = 60.0
    snapshot_every: float = 0.0
    snapshot_pause: float = 0.0
    journal: bool = False

    def __post_init__(self) -> None:
        if not (self.mean_hours > 0 and self.workers > 0 and self.shards >= 0):
            raise ConfigError("the hours between deaths and the number of workers must be above 0")
        if min(self.restart, self.snapshot_every, self.snapshot_pause) < 0:
            raise ConfigError("the seconds of restarts and snapshots must be >= 0")


@dataclass(slots=True)
class Survived:
    """Result of a simulation, in seconds.

    Args:
        hours: simulated hours.
        trained: time of steps that count.
        repeated: time of steps that were lost and trained again.
        down: time of restarts.
        paused: time of snapshots.
        deaths: number of process deaths.
    """

    hours: float
    trained: float = 0.0
    repeated: float = 0.0
    down: float = 0.0
    paused: float = 0.0
    deaths: int = 0

    @property
    def share(self) -> float:
        """Fraction of the time whose steps count."""
        return self.trained / (3600.0 * self.hours)


def survive(deaths: Deaths, hours: float, seed: int = 1) -> Survived:
    """Simulate hours of a run."""
    env, result = simpy.Environment(), Survived(hours)
    env.process(_train(env, deaths, result, np.random.default_rng(seed)))
    env.run()
    return result


def _train(
    env: simpy.Environment, deaths: Deaths, found: Survived, random: np.random.Generator
) -> Generator[simpy.Event, Any, Any]:
    processes, since, end = deaths.workers + deaths.shards, 0.0, 3600.0 * found.hours
    death = random.exponential(3600.0 * deaths.mean_hours / processes)
    while env.now < end:
        snapshot = deaths.snapshot_every - since if deaths.snapshot_every else float("inf")
        passed = min(death, snapshot, end - env.now)
        yield env.timeout(passed)
        found.trained += passed
        since, death = since + passed, death - passed
        if env.now >= end:
            return
        if death <= 0:
            found.deaths += 1
            if not (deaths.journal and random.random() * processes < deaths.shards):
                found.trained, found.repeated, since = found.trained - since, found.repeated + since, 0.0
            yield from _waited(env, deaths.restart, found, "down")
            death = random.exponential(3600.0 * deaths.mean_hours / processes)
        elif snapshot <= passed:
            since = 0.0
            yield from _waited(env, deaths.snapshot_pause, found, "paused")


def _waited(
    env: simpy.Environment, seconds: float, found: Survived, name: str
) -> Generator[simpy.Event, Any, Any]:
    counted = min(seconds, 3600.0 * found.hours - env.now)
    setattr(found, name, getattr(found, name) + counted)
    yield env.timeout(seconds)
