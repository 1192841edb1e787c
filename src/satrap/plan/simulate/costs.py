"""What each piece of work costs, from measured runs."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from satrap.errors import ConfigError
from satrap.plan.simulate.cluster import Work, simulate
from satrap.plan.simulate.host import slow
from satrap.plan.simulate.measured import Measured
from satrap.plan.simulate.setup import Outcome, Setup

Floats = npt.NDArray[np.float64]

VERSION = 1
SEND, RECEIVE = 0.2, 0.35
"""Shares of the exchange's thread that lookups and their answers take, the rest is for updates; about what
`benchmarks.persia` measures."""
LOOKUP = 0.6
"""Share of a shard's work that lookups take, likewise."""
TOLD, MOST_SLOWDOWN = 0.3, 2.0
"""Difference in the share of busy cores from which a slowdown can be told, and the most that is believed."""
LEAST_CORES = 0.1
DISTURBED = 0.25
"""Cores busy with other programs from which a calibration is doubtful."""
STEPS, TURNS = 50, 11
"""Of a simulation that finds a waiting time, and halvings of the range where it is looked for."""


@dataclass(frozen=True, slots=True)
class Run:
    """A measured run and what it was of.

    Args:
        exchange, mode: as in a recipe.
        ahead: staleness.
        measured: what it has cost.
        copies: how many such runs there were at the same time, default 1.
        delay: seconds by which each message to and from a shard was delayed, default 0.
    """

    exchange: str
    mode: str
    ahead: int
    measured: Measured
    copies: int = 1
    delay: float = 0.0

    @property
    def others(self) -> float:
        """Cores that were busy with something else."""
        return max(self.measured.busy - self.copies * self.measured.cpu / self.measured.seconds, 0.0)

    def setup(self, cores: float) -> Setup:
        """Return what is to be simulated to predict it."""
        m = self.measured
        return Setup(
            self.exchange,
            self.mode,
            self.ahead,
            int(m.workers),
            max(int(m.holders), 1),
            m.samples,
            m.rows,
            m.values,
            m.dense,
            cores,
            latency=self.delay,
        )


@dataclass(frozen=True, slots=True)
class Calibration:
    """Measured runs of one machine, in a file.

    Args:
        runs: see `satrap.launch.calibration`.
        cores: of the machine.
        recipe: name of what was trained.
        date: in ISO format.
    """

    runs: Sequence[Run]
    cores: int
    recipe: str
    date: str

    @property
    def disturbed(self) -> float:
        """Cores that were busy with something else, in the median run."""
        return statistics.median(run.others for run in self.runs)

    def write(self, path: str | Path) -> None:
        """Write it as JSON."""
        Path(path).write_text(
            json.dumps({"version": VERSION, **asdict(self)}, indent=1) + "\n", encoding="utf-8"
        )

    @classmethod
    def read(cls, path: str | Path) -> Calibration:
        """Read what `write` wrote; a file that is something else raises ConfigError."""
        try:
            plain: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
            version = plain.pop("version")
            runs = [Run(**{**run, "measured": Measured(**run["measured"])}) for run in plain.pop("runs")]
            found = cls(runs, **plain)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigError(
                "the calibration cannot be read",
                where=str(path),
                why=f"{type(error).__name__}: {error}",
                fix="write one with satrap plan RECIPE --calibrate FILE",
            ) from error
        if version != VERSION:
            raise ConfigError(f"the calibration has format {version}, not {VERSION}", where=str(path))
        return found


class Costs:
    """Costs of a machine, fitted to its calibration.

    The processor seconds of each thread are a sum, with factors >= 0, of a constant, the samples (of shards
    and the exchange's thread: the rows) and the numbers in the rows; what several workers cost besides is a
    constant of a step. Clocks of processors tell them apart, so other programs hardly matter. They are
    divided by how much longer work takes while other cores are busy, see `Host`. What then is missing from
    the measured time of a step is waiting: of a thread for others of its process (from `hybrid` runs of one
    worker), of a message (from `sync` runs), of a sum, and of an all-to-all. Each is the one that makes the
    simulated steps as long as the measured ones, in the median, on the cores that other programs left.

    Args:
        calibration: runs of one machine.

    Attributes:
        cores, slowdown, jitter: of `Setup` and `Work`.
        waits: seconds by name: turn, hop, sum, talk.

    Raises:
        ConfigError: runs are missing.
    """

    def __init__(self, calibration: Calibration) -> None:
        self.cores, self.waits = calibration.cores, dict.fromkeys(("turn", "hop", "sum", "talk"), 0.0)
        runs = calibration.runs
        self.slowdown = _slowdown([run for run in runs if run.exchange == "local"], self.cores)
        self._factors: dict[str, Floats] = {}
        alone = [run for run in runs if run.exchange != "collective" and run.measured.workers == 1]
        served = [run for run in runs if run.exchange == "servers"]
        several = [run for run in served if run.measured.workers > 1]
        together = [run for run in runs if run.exchange == "collective"]
        one = [run for run in served if run.measured.workers == 1]
        for name, found in (
            ("servers", one),
            ("servers with several workers", several),
            ("collective", together),
        ):
            if not found:
                raise ConfigError(f"the calibration has no run of {name}", fix="calibrate anew")
        self.jitter = statistics.median(run.measured.spread for run in one if run.ahead)
        for piece in ("reader", "main", "other"):
            self._fit(f"servers {piece}", alone, piece, _of_samples)
            self._fit(f"collective {piece}", together, piece, _of_samples)
        self._fit("local exchange", [run for run in alone if run.exchange == "local"], "exchange", _of_rows)
        self._fit("servers exchange", served, "exchange", _of_messages)
        self._fit("collective exchange", together, "exchange", _of_rows)
        self._fit("servers shards", served, "shards", _of_shards)
        self._besides = {piece: self._beside(several, piece) for piece in ("reader", "main", "other")}
        self._wait("turn", [run for run in one if run.ahead])
        self._wait("hop", [run for run in one if not run.ahead])
        self._wait("sum", several)
        self._wait("talk", together)

    def _fit(
        self, name: str, runs: Sequence[Run], piece: str, terms: Callable[[Measured, bool], list[float]]
    ) -> None:
        each = [(terms(run.measured, run.mode == "sync"), self._alone(run.measured, piece)) for run in runs]
        self._factors[name] = nonnegative(np.array([x for x, _ in each]), np.array([y for _, y in each]))

    def _alone(self, measured: Measured, piece: str) -> float:
        """Return measured processor seconds as they would be with the other cores idle."""
        seconds: float = getattr(measured, piece)
        return seconds / slow(self.slowdown, measured.busy, self.cores)

    def _beside(self, runs: Sequence[Run], piece: str) -> float:
        """Return what a step of several workers costs besides."""
        factors = self._factors[f"servers {piece}"]
        found = (self._alone(r.measured, piece) - factors @ _of_samples(r.measured, False) for r in runs)
        return max(statistics.median(map(float, found)), 0.0)

    def _wait(self, name: str, runs: Sequence[Run]) -> None:
        low, high = 0.0, max(run.measured.seconds for run in runs)
        for _ in range(TURNS):
            self.waits[name] = (low + high) / 2
            if self.bias(runs) > 0:
                high = self.waits[name]
            else:
                low = self.waits[name]
        self.waits[name] = low

    def bias(self, runs: Sequence[Run]) -> float:
        """Return the median of log(predicted seconds of a step / measured ones)."""
        return statistics.median(
            math.log(self.predict(run, steps=STEPS, others=run.others).step_seconds / run.measured.seconds)
            for run in runs
        )

    def predict(self, run: Run, *, steps: int = 200, others: float = 0.0) -> Outcome:
        """Simulate a run; return its outcome.

        Args:
            run: of whose measurement only the sizes are used.
            steps: of each worker, default 200.
            others: cores that other programs take, default 0.
        """
        setup = replace(run.setup(max(self.cores - others, LEAST_CORES)), steps=steps)
        m = run.measured
        return simulate(setup, self.work(setup, sent=m.sent, received=m.received))

    def work(self, setup: Setup, *, sent: float = 0.0, received: float = 0.0) -> Work:
        """Return the costs of a step.

        Args:
            setup: what is trained, and by whom.
            sent, received: bytes between a worker and the holders, default 0.
        """
        kind = "collective" if setup.exchange == "collective" else "servers"
        m = _sizes(setup)
        several = kind == "servers" and setup.workers > 1
        own = {
            piece: self._seconds(f"{kind} {piece}", _of_samples(m, False)) + several * self._besides[piece]
            for piece in ("reader", "main", "other")
        }
        terms = _of_messages if setup.exchange == "servers" else _of_rows
        sync = setup.mode == "sync"
        exchange = self._seconds(f"{setup.exchange} exchange", terms(m, sync))
        shards = self._seconds("servers shards", _of_shards(m, sync)) / (setup.workers * setup.shards)
        return Work(
            **own,
            send=SEND * exchange,
            receive=RECEIVE * exchange,
            push=(1 - SEND - RECEIVE) * exchange,
            lookup=LOOKUP * shards,
            update=(1 - LOOKUP) * shards,
            turn=self.waits["turn"],
            hop=self.waits["hop"],
            meet=self.waits["talk" if kind == "collective" else "sum"],
            sent=sent,
            received=received,
            slowdown=self.slowdown,
            jitter=self.jitter,
        )

    def _seconds(self, name: str, terms: Sequence[float]) -> float:
        return float(self._factors[name] @ terms)

    def to_dict(self) -> Mapping[str, Any]:
        """Return the fitted numbers as plain data, in seconds."""
        return {
            "slowdown": self.slowdown,
            "jitter": self.jitter,
            "waits": dict(self.waits),
            "factors": {name: factors.tolist() for name, factors in self._factors.items()},
            "several_workers": self._besides,
        }


def _sizes(setup: Setup) -> Measured:
    rest = dict.fromkeys(("spread", "busy", "sent", "received", "seconds", "waited", "reader", "main"), 0.0)
    rest |= dict.fromkeys(("exchange", "other", "shards"), 0.0)
    sizes = {name: getattr(setup, name) for name in ("samples", "rows", "values", "dense")}
    return Measured(setup.workers, setup.shards, **sizes, **rest)


def _of_samples(m: Measured, sync: bool) -> list[float]:
    return [1.0, m.samples, m.values]


def _of_rows(m: Measured, sync: bool) -> list[float]:
    return [1.0, m.rows, m.values]


def _of_messages(m: Measured, sync: bool) -> list[float]:
    return [m.holders, m.rows, m.values]


def _of_shards(m: Measured, sync: bool) -> list[float]:
    """Return what all shards do for all workers; in sync, several workers' gradients are summed."""
    sums = sync and m.workers > 1
    return [m.workers * m.holders, m.workers * m.rows, m.workers * m.values, sums * m.workers * m.rows]


def _slowdown(runs: Sequence[Run], cores: int) -> float:
    """Return how much longer work takes with all cores busy, from one run alone and `cores` at once."""
    single = [run.measured for run in runs if run.copies == 1]
    many = [run.measured for run in runs if run.copies > 1]
    if not single or not many or cores == 1:
        return 1.0
    ratio = statistics.median(m.cpu for m in many) / statistics.median(m.cpu for m in single)
    few, all_ = (
        min(max((statistics.median(m.busy for m in found) - 1) / (cores - 1), 0.0), 1.0)
        for found in (single, many)
    )
    if all_ - few < TOLD or all_ <= ratio * few:  # other programs kept the cores busy both times
        return 1.0
    return min(max(1.0 + (ratio - 1.0) / (all_ - ratio * few), 1.0), MOST_SLOWDOWN)


def nonnegative(x: Floats, y: Floats) -> Floats:
    """Return the factors >= 0, float64[k], for which x[n, k] @ factors is nearest to y[n], in relative terms.

    Every choice of columns is tried.
    """
    weight = 1.0 / np.maximum(np.abs(y), 1e-12)
    x, scaled = x * weight[:, None], y * weight
    best, error = np.zeros(x.shape[1]), float("inf")
    if not y.any():
        return best
    for count in range(min(x.shape), 0, -1):
        for columns in itertools.combinations(range(x.shape[1]), count):
            found = np.linalg.lstsq(x[:, columns], scaled, rcond=None)[0]
            left = float(np.square(x[:, columns] @ found - scaled).sum())
            if (found >= 0).all() and left < error:
                best, error = np.zeros(x.shape[1]), left
                best[list(columns)] = found
    return best
