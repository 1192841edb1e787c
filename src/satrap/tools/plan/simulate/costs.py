"""Cost model of each kind of work, fitted to measured runs."""

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
from satrap.tools.plan.simulate.cluster import StepWork, simulate
from satrap.tools.plan.simulate.host import slow
from satrap.tools.plan.simulate.measured import Measured
from satrap.tools.plan.simulate.setup import Setup, SimulationResult

Floats = npt.NDArray[np.float64]

VERSION = 1
SEND, RECEIVE = 0.2, 0.35
"""Fractions of the exchange thread's work for lookups and their responses; the rest is for updates. About the
values that `benchmarks.persia` measures."""
LOOKUP = 0.6
"""Fraction of a shard's work for lookups, likewise."""
TOLD, MOST_SLOWDOWN = 0.3, 2.0
"""Least difference in the fraction of busy cores that shows a slowdown, and the largest credible slowdown."""
LEAST_CORES = 0.1
DISTURBED = 0.25
"""Cores busy with other programs above which a calibration is unreliable."""
STEPS, TURNS = 50, 11
"""Steps of a simulation in the search for a waiting time, and bisections of that search."""


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """A measured run and its settings.

    Args:
        exchange, mode: as in a recipe.
        ahead: staleness.
        measured: its measured costs.
        copies: number of concurrent runs like this one, default 1.
        delay: seconds of delay added to each message to and from a shard, default 0.
    """

    exchange: str
    mode: str
    ahead: int
    measured: Measured
    copies: int = 1
    delay: float = 0.0

    @property
    def others(self) -> float:
        """Cores that were busy with other programs."""
        return max(self.measured.busy - self.copies * self.measured.cpu / self.measured.seconds, 0.0)

    def setup(self, cores: float) -> Setup:
        """Return the setup to simulate in order to predict this run."""
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
        runs: see `satrap.tools.plan.calibration`.
        cores: cores of the machine.
        recipe: name of the trained recipe.
        date: in ISO format.
    """

    runs: Sequence[MeasuredRun]
    cores: int
    recipe: str
    date: str

    @property
    def disturbed(self) -> float:
        """Cores that were busy with other programs, in the median run."""
        return statistics.median(run.others for run in self.runs)

    def write(self, path: str | Path) -> None:
        """Write the calibration as JSON."""
        Path(path).write_text(
            json.dumps({"version": VERSION, **asdict(self)}, indent=1) + "\n", encoding="utf-8"
        )

    @classmethod
    def read(cls, path: str | Path) -> Calibration:
        """Read a file written by `write`; `ConfigError` for any other file."""
        try:
            plain: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
            version = plain.pop("version")
            runs = [
                MeasuredRun(**{**run, "measured": Measured(**run["measured"])}) for run in plain.pop("runs")
            ]
            calibration = cls(runs, **plain)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigError(
                "the calibration cannot be read",
                where=str(path),
                why=f"{type(error).__name__}: {error}",
                fix="create a calibration with satrap plan RECIPE --calibrate FILE",
            ) from error
        if version != VERSION:
            raise ConfigError(f"the calibration has format {version}, not {VERSION}", where=str(path))
        return calibration


class MachineCosts:
    """Costs of a machine, fitted to its calibration.

    The CPU seconds of each thread are modeled as a sum, with factors >= 0, of a constant, the samples (for
    shards and the exchange thread: the rows) and the numbers in the rows; several workers add a constant per
    step. CPU clocks separate the threads, so other programs hardly matter. The CPU seconds are divided by the
    slowdown from other busy cores, see `Host`. The rest of the measured step time is waiting: of a thread
    for other threads of its process (from `hybrid` runs of one worker), for a message (from `sync` runs), for
    a sum, and for an all-to-all. Each waiting time is chosen so that simulated steps take as long as measured
    steps, in the median, on the cores not used by other programs.

    Args:
        calibration: runs of one machine.

    Attributes:
        cores, slowdown, jitter: see `Setup` and `StepWork`.
        waits: waiting time in seconds by name: turn, hop, sum, talk.

    Raises:
        ConfigError: the calibration lacks a run.
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
        single = [run for run in served if run.measured.workers == 1]
        for name, needed in (
            ("servers", single),
            ("servers with several workers", several),
            ("collective", together),
        ):
            if not needed:
                raise ConfigError(f"the calibration has no run of {name}", fix="calibrate again")
        self.jitter = statistics.median(run.measured.spread for run in single if run.ahead)
        for piece in ("reader", "main", "other"):
            self._fit(f"servers {piece}", alone, piece, _of_samples)
            self._fit(f"collective {piece}", together, piece, _of_samples)
        self._fit("local exchange", [run for run in alone if run.exchange == "local"], "exchange", _of_rows)
        self._fit("servers exchange", served, "exchange", _of_messages)
        self._fit("collective exchange", together, "exchange", _of_rows)
        self._fit("servers shards", served, "shards", _of_shards)
        self._besides = {piece: self._beside(several, piece) for piece in ("reader", "main", "other")}
        self._wait("turn", [run for run in single if run.ahead])
        self._wait("hop", [run for run in single if not run.ahead])
        self._wait("sum", several)
        self._wait("talk", together)

    def _fit(
        self,
        name: str,
        runs: Sequence[MeasuredRun],
        piece: str,
        terms: Callable[[Measured, bool], list[float]],
    ) -> None:
        each = [(terms(run.measured, run.mode == "sync"), self._alone(run.measured, piece)) for run in runs]
        self._factors[name] = nonnegative(np.array([x for x, _ in each]), np.array([y for _, y in each]))

    def _alone(self, measured: Measured, piece: str) -> float:
        """Return measured CPU seconds, corrected to other cores being idle."""
        seconds: float = getattr(measured, piece)
        return seconds / slow(self.slowdown, measured.busy, self.cores)

    def _beside(self, runs: Sequence[MeasuredRun], piece: str) -> float:
        """Return the additional cost of a step with several workers."""
        factors = self._factors[f"servers {piece}"]
        extras = (self._alone(r.measured, piece) - factors @ _of_samples(r.measured, False) for r in runs)
        return max(statistics.median(map(float, extras)), 0.0)

    def _wait(self, name: str, runs: Sequence[MeasuredRun]) -> None:
        low, high = 0.0, max(run.measured.seconds for run in runs)
        for _ in range(TURNS):
            self.waits[name] = (low + high) / 2
            if self.bias(runs) > 0:
                high = self.waits[name]
            else:
                low = self.waits[name]
        self.waits[name] = low

    def bias(self, runs: Sequence[MeasuredRun]) -> float:
        """Return the median of log(predicted / measured seconds of a step)."""
        return statistics.median(
            math.log(self.predict(run, steps=STEPS, others=run.others).step_seconds / run.measured.seconds)
            for run in runs
        )

    def predict(self, run: MeasuredRun, *, steps: int = 200, others: float = 0.0) -> SimulationResult:
        """Simulate a run; return its outcome.

        Args:
            run: only the sizes of its measurement are used.
            steps: steps of each worker, default 200.
            others: cores used by other programs, default 0.
        """
        setup = replace(run.setup(max(self.cores - others, LEAST_CORES)), steps=steps)
        m = run.measured
        return simulate(setup, self.work(setup, sent=m.sent, received=m.received))

    def work(self, setup: Setup, *, sent: float = 0.0, received: float = 0.0) -> StepWork:
        """Return the costs of a step.

        Args:
            setup: the setup to simulate.
            sent, received: bytes between a worker and the holders, default 0.
        """
        kind = "collective" if setup.exchange == "collective" else "servers"
        m = _sizes(setup)
        several = kind == "servers" and setup.workers > 1
        by_piece = {
            piece: self._seconds(f"{kind} {piece}", _of_samples(m, False)) + several * self._besides[piece]
            for piece in ("reader", "main", "other")
        }
        terms = _of_messages if setup.exchange == "servers" else _of_rows
        sync = setup.mode == "sync"
        exchange = self._seconds(f"{setup.exchange} exchange", terms(m, sync))
        shards = self._seconds("servers shards", _of_shards(m, sync)) / (setup.workers * setup.shards)
        return StepWork(
            **by_piece,
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
    """Return the terms of all shards' work; in sync, they sum the gradients of several workers."""
    sums = sync and m.workers > 1
    return [m.workers * m.holders, m.workers * m.rows, m.workers * m.values, sums * m.workers * m.rows]


def _slowdown(runs: Sequence[MeasuredRun], cores: int) -> float:
    """Return the slowdown of work with all cores busy, from a single run and `cores` concurrent runs."""
    single = [run.measured for run in runs if run.copies == 1]
    many = [run.measured for run in runs if run.copies > 1]
    if not single or not many or cores == 1:
        return 1.0
    ratio = statistics.median(m.cpu for m in many) / statistics.median(m.cpu for m in single)
    few, all_ = (
        min(max((statistics.median(m.busy for m in measured) - 1) / (cores - 1), 0.0), 1.0)
        for measured in (single, many)
    )
    if all_ - few < TOLD or all_ <= ratio * few:  # other programs kept the cores busy in both cases
        return 1.0
    return min(max(1.0 + (ratio - 1.0) / (all_ - ratio * few), 1.0), MOST_SLOWDOWN)


def nonnegative(x: Floats, y: Floats) -> Floats:
    """Return the factors >= 0, float64[k], that minimize the relative error of x[n, k] @ factors to y[n].

    All subsets of columns are tried.
    """
    weight = 1.0 / np.maximum(np.abs(y), 1e-12)
    x, scaled = x * weight[:, None], y * weight
    best, error = np.zeros(x.shape[1]), float("inf")
    if not y.any():
        return best
    for count in range(min(x.shape), 0, -1):
        for columns in itertools.combinations(range(x.shape[1]), count):
            factors = np.linalg.lstsq(x[:, columns], scaled, rcond=None)[0]
            residual = float(np.square(x[:, columns] @ factors - scaled).sum())
            if (factors >= 0).all() and residual < error:
                best, error = np.zeros(x.shape[1]), residual
                best[list(columns)] = factors
    return best
