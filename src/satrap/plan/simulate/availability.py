"""Hours of a run with deaths and snapshots, of which only the speed of undisturbed steps is known."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np

from satrap.errors import ConfigError
from satrap.plan.simulate.host import simpy


@dataclass(frozen=True, slots=True)
class Deaths:
    """What goes wrong, and what is done about it.

    Args:
        workers, shards: processes that may die.
        mean_hours: between two deaths of one process, exponentially distributed.
        restart: seconds until a dead process, or all workers, work again; default 60.
        snapshot_every: seconds between two snapshots; 0, the default: none, so all begins anew.
        snapshot_pause: seconds for which a snapshot stops the workers, default 0.
        journal: a dead shard comes back alone, with all its rows; default False: all go back to a snapshot.

    Raises:
        ConfigError: a number out of its range.
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
            raise ConfigError("hours between deaths and the number of workers must be above 0")
        if min(self.restart, self.snapshot_every, self.snapshot_pause) < 0:
            raise ConfigError("seconds of restarts and snapshots must not be below 0")


@dataclass(slots=True)
class Survived:
    """What came of the hours, in seconds.

    Args:
        hours: that were simulated.
        trained: of steps that count.
        repeated: of steps that were lost and trained again.
        down: of restarts.
        paused: of snapshots.
        deaths: of processes.
    """

    hours: float
    trained: float = 0.0
    repeated: float = 0.0
    down: float = 0.0
    paused: float = 0.0
    deaths: int = 0

    @property
    def share(self) -> float:
        """The share of the time whose steps count."""
        return self.trained / (3600.0 * self.hours)


def survive(deaths: Deaths, hours: float, seed: int = 1) -> Survived:
    """Play hours of a run through."""
    env, found = simpy.Environment(), Survived(hours)
    env.process(_train(env, deaths, found, np.random.default_rng(seed)))
    env.run()
    return found


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
