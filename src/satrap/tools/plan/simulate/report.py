"""Report of simulations as text, plain data and an HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from satrap.plan.result import columns
from satrap.tools.plan.simulate.availability import Survived
from satrap.tools.plan.simulate.costs import MachineCosts
from satrap.tools.plan.simulate.setup import Setup, SimulationResult
from satrap.tools.report_page.element import Html, element
from satrap.tools.report_page.html import document
from satrap.tools.report_page.svg import Line, bars, chart
from satrap.tools.report_page.tables import table

AS_ASKED = "as asked"
HOT, STRAGGLER, LOST, BACKGROUND = 4.0, 2.0, 1.0, 0.5
"""For `what_if`: work of a hot shard, time of a straggler, seconds of a lost shard, used network."""


def what_if(setup: Setup) -> dict[str, Setup]:
    """Return difference -> setup, to compare with a setup."""
    setups = {
        f"{mode}": replace(setup, mode=mode, ahead=0 if mode == "sync" else setup.ahead or 4)
        for mode in ("sync", "hybrid", "async")
        if mode != setup.mode and (mode != "async" or setup.exchange == "servers")
    }
    if setup.workers > 1 and setup.exchange == "servers":
        collective = replace(setup, exchange="collective", mode="sync", ahead=0)
        setups["collective, sync"] = collective
        setups[f"worker 0 takes {STRAGGLER:g} x as long"] = replace(setup, straggler=STRAGGLER)
    if setup.exchange == "servers":
        setups[f"a shard away for {LOST:g} s"] = replace(setup, lost=LOST)
        if setup.shards > 1:
            setups[f"a shard with {HOT:g} x the work"] = replace(setup, hot=HOT)
        if not setup.together:
            name = f"snapshots or moved rows take {BACKGROUND:.0%} of shards' networks"
            setups[name] = replace(setup, background=BACKGROUND * setup.bandwidth)
    if setup.workers > 1:
        for factor in (0.5, 2.0):
            scaled = {n: max(1, round(getattr(setup, n) * factor)) for n in ("workers", "shards")}
            setups[f"{scaled['workers']:,} workers, {scaled['shards']:,} shards"] = replace(setup, **scaled)
    return setups


@dataclass(frozen=True, slots=True)
class Simulated:
    """Simulations of a recipe.

    Args:
        name: name of the recipe.
        outcomes: simulated variant -> outcome; the first is `AS_ASKED`.
        costs: cost model.
        origin: source of the costs, as text.
        survived: result for hours with deaths and snapshots; None: not requested.
    """

    name: str
    outcomes: Mapping[str, SimulationResult]
    costs: MachineCosts
    origin: str
    survived: Survived | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the simulations as plain data."""
        return {
            "recipe": self.name,
            "outcomes": {name: outcome.to_dict() for name, outcome in self.outcomes.items()},
            "costs": self.costs.to_dict(),
            "origin": self.origin,
            "survived": None if self.survived is None else _survived(self.survived),
        }

    def report(self) -> str:
        """Return the simulations as text."""
        lines = [
            _described(self.outcomes[AS_ASKED].setup),
            "",
            *columns([HEAD, *map(self._line, self.outcomes)]),
        ]
        if self.survived is not None:
            lines += ["", _hours(self.survived)]
        return "\n".join([*lines, "", *(f"  {note}" for note in self._notes())])

    def _line(self, name: str) -> list[str]:
        outcome = self.outcomes[name]
        shards = f"{outcome.shard_busy.max():.0%}" if len(outcome.shard_busy) else "-"
        others = _mean(outcome.others)
        return [
            name,
            f"{outcome.samples_per_second:,.0f}",
            f"{1000 * outcome.step_seconds:.2f}",
            f"{1000 * float(np.percentile(outcome.taken, 99)):.2f}",
            f"{1000 * float(np.percentile(outcome.lookups, 99)):.2f}",
            f"{max(outcome.own, default=0)}",
            f"{others:.1f}",
            shards,
        ]

    def _notes(self) -> list[str]:
        s = self.outcomes[AS_ASKED].setup
        where = "all on one host" if s.together else f"a host each, {s.bandwidth / 1e9:g} GB/s"
        return [
            f"{s.cores} cores per host, {where}; {s.steps} steps simulated, the first fifth ignored",
            f"costs: {self.origin}; work takes {self.costs.slowdown:.2f} x as long with all cores busy",
            "staleness: updates missed by a lookup: own (maximum), of other workers (mean)",
            "not simulated: evaluation, embedding workers, loaders, GPUs, lost packets",
        ]

    def page(self) -> str:
        """Return the simulations as one self-contained HTML page."""
        requested = self.outcomes[AS_ASKED]
        rows = [self._line(name) for name in self.outcomes]
        sections: list[tuple[str, Sequence[Html]]] = [
            ("Setup", [element("p", _described(requested.setup)), table(HEAD, rows)]),
            ("Throughput", [_bars("Samples/s", {n: o.samples_per_second for n, o in self.outcomes.items()})]),
            ("Tail latencies", [self._quantiles("taken", "Step"), self._quantiles("lookups", "Lookup")]),
            ("Staleness", [self._staleness()]),
            ("Shards", [self._busy()]),
            ("Traffic", [self._traffic()]),
            ("Notes", [element("ul", [element("li", note) for note in self._notes()])]),
        ]
        if self.survived is not None:
            sections.insert(-1, ("Deaths and snapshots", [element("p", _hours(self.survived))]))
        return document(f"satrap plan: {self.name}", sections)

    def _quantiles(self, what: str, title: str) -> Html:
        shares = np.linspace(0, 1, 51)
        lines = [
            Line(
                name,
                [(float(p), 1000 * float(v)) for p, v in zip(shares, np.quantile(t, shares), strict=True)],
                i,
            )
            for i, (name, outcome) in enumerate(self.outcomes.items())
            if len(t := getattr(outcome, what))
        ]
        return chart(f"{title} of worker 0, by quantile", lines, x="fraction of steps", y="ms")

    def _staleness(self) -> Html:
        lines = []
        for i, (name, outcome) in enumerate(self.outcomes.items()):
            missed = sorted((outcome.own + outcome.others).items())
            total, below, points = sum(count for _, count in missed), 0, [(0.0, 0.0)]
            for number, count in missed:
                below += count
                points.append((float(number), below / total))
            lines.append(Line(name, points, i))
        title = "Own and other workers' updates missed by a lookup"
        return chart(title, lines, x="updates", y="cumulative fraction")

    def _busy(self) -> Html:
        rows = {name: float(o.shard_busy.max()) for name, o in self.outcomes.items() if len(o.shard_busy)}
        return _bars("Busy fraction of the busiest shard", rows)

    def _traffic(self) -> Html:
        rows = []
        for name, outcome in self.outcomes.items():
            s, speed = outcome.setup, outcome.samples_per_second / outcome.setup.samples
            ways = [f"{size * speed / 1e6:,.1f}" for size in (outcome.sent, outcome.received)]
            background = f"{s.background * s.shards / 1e6:,.1f}" if s.exchange == "servers" else "-"
            rows.append([name, *ways, background])
        return table(["MB/s of all workers", "ids and gradients", "rows", "snapshots, moved rows"], rows)


HEAD = ["", "samples/s", "ms/step", "p99", "p99 lookup", "own", "others", "busiest shard"]


def _described(s: Setup) -> str:
    ahead = f" {s.ahead} ahead" if s.ahead else ""
    shards = f", {s.shards:,} shards" if s.exchange == "servers" else ""
    return f"{s.exchange}, {s.mode}{ahead}: {s.workers:,} workers x {s.samples:,.0f} samples{shards}"


def _mean(counted: Mapping[int, int]) -> float:
    return sum(missed * count for missed, count in counted.items()) / max(sum(counted.values()), 1)


def _bars(title: str, rows: Mapping[str, float]) -> Html:
    return bars(title, {name: [value] for name, value in rows.items()}, x=title)


def _survived(found: Survived) -> dict[str, Any]:
    return {
        "hours": found.hours,
        "deaths": found.deaths,
        "share_trained": found.share,
        **{f"{name}_seconds": getattr(found, name) for name in ("trained", "repeated", "down", "paused")},
    }


def _hours(found: Survived) -> str:
    return (
        f"{found.hours:g} hours: {found.deaths} deaths; {found.share:.1%} of the time is useful, "
        f"{found.repeated / 3600:.2f} h repeated, {found.down / 3600:.2f} h down, "
        f"{found.paused / 3600:.2f} h in snapshots"
    )
