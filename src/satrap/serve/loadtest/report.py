"""What a load test has found, as numbers and as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from satrap.serve.loadtest.generator import Outcome
from satrap.serve.loadtest.offline import Comparison
from satrap.words import counted

SHARES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
"""Name -> share of the answers that took no longer."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a load test has found.

    Args:
        outcomes: of the requests, in the order in which they were due.
        rate: requests per second that were asked for.
        seconds: for how long.
        items: of a request, at most.
        rollbacks: how often an operator went back to an older version meanwhile.
        comparison: with offline scores; None: there was none.
        tolerance: of the comparison.
    """

    outcomes: Sequence[Outcome]
    rate: float
    seconds: float
    items: int
    rollbacks: int = 0
    comparison: Comparison | None = None
    tolerance: float = 1e-6

    @property
    def failures(self) -> dict[str, int]:
        """How many requests have no scores, by status."""
        return dict(Counter(one.status for one in self.outcomes if not one.answered))

    @property
    def falls(self) -> int:
        """Answers of an older step than one that was there before their request was sent."""
        return sum(one.answered and one.step < one.newest for one in self.outcomes)

    @property
    def steps(self) -> list[int]:
        """The steps of the answers, ascending."""
        return sorted({one.step for one in self.outcomes if one.answered})

    @property
    def right(self) -> bool:
        """Whether every request was answered, no step fell unless rolled back, and no score was wrong."""
        compared = self.comparison
        wrong = compared is not None and (compared.wrong > 0 or (compared.right == 0 and bool(self.steps)))
        return bool(self.outcomes) and not (self.failures or (self.falls and not self.rollbacks) or wrong)

    def latency(self) -> dict[str, float]:
        """Return milliseconds from when requests were due to their scores: `SHARES`, and the longest."""
        return _percentiles([1000 * one.latency for one in self.outcomes if one.answered])

    def stages(self) -> dict[str, dict[str, float]]:
        """Return the same by stage, as the server says; empty if it does not."""
        answered = [one.stages for one in self.outcomes if one.answered and one.stages]
        names = dict.fromkeys(name for stages in answered for name in stages)
        return {
            name: _percentiles([1000 * stages[name] for stages in answered if name in stages])
            for name in names
        }

    def lag(self) -> dict[str, float]:
        """Return milliseconds from when requests were due until they were sent, if a connection was free."""
        return _percentiles(
            [1000 * (one.sent - one.due) for one in self.outcomes if one.sent and not one.waited]
        )

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as JSON has it."""
        compared = self.comparison
        return {
            "requests": len(self.outcomes),
            "rate": self.rate,
            "seconds": self.seconds,
            "items": self.items,
            "latency_ms": self.latency(),
            "stages_ms": self.stages(),
            "failures": self.failures,
            "steps": self.steps,
            "falls": self.falls,
            "rollbacks": self.rollbacks,
            "scores": None
            if compared is None
            else {
                "right": compared.right,
                "wrong": compared.wrong,
                "unknown": compared.unknown,
                "largest_difference": compared.largest,
                "wrong_steps": sorted(compared.wrong_steps),
            },
            "sent_late_ms": self.lag(),
            "waited_for_connection": sum(one.waited for one in self.outcomes),
            "right": self.right,
        }

    def lines(self) -> list[str]:
        """Return all of it as text."""
        answered = len(self.outcomes) - sum(self.failures.values())
        waited = sum(one.waited for one in self.outcomes)
        lines = {
            "requests": f"{len(self.outcomes):,} in {self.seconds:g} s, due at {self.rate:g} per second, "
            f"up to {counted(self.items, 'item')} each",
            "answers": f"{answered:,}{_listed(self.failures)}",
            "latency": f"{_shown(self.latency())} ms from when a request was due",
            **{f"  {stage}": _shown(found) for stage, found in self.stages().items()},
            "steps": self._steps(),
            **({} if self.comparison is None else {"scores": self._scores(self.comparison)}),
            "sent": f"{_shown(self.lag())} ms after a request was due"
            + (f"; {waited:,} waited for a connection" if waited else ""),
        }
        return [f"{name:<9} {text}" for name, text in lines.items()]

    def _steps(self) -> str:
        steps = self.steps
        if not steps:
            return "none"
        span = f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,}, {len(steps)} of them"
        back = f", rolled back {counted(self.rollbacks, 'time')}" if self.rollbacks else ""
        if not self.falls:
            return f"{span}, never falling{back}"
        return f"{span}; {counted(self.falls, 'answer')} of an older step than one before{back}"

    def _scores(self, compared: Comparison) -> str:
        text = f"{compared.right:,} as satrap predict within {self.tolerance:g}"
        if compared.wrong:
            steps = ", ".join(f"{step:,}" for step in sorted(compared.wrong_steps)[:8])
            text += f", {compared.wrong:,} wrong by up to {compared.largest:.2g} (steps {steps})"
        if compared.unknown:
            text += f", {compared.unknown:,} of steps that are not there any more"
        return text


def _percentiles(values: Sequence[float]) -> dict[str, float]:
    """Return `SHARES` of some values and the longest; empty if there are none."""
    if not values:
        return {}
    found = {name: np.quantile(values, share, method="higher") for name, share in SHARES.items()}
    return {name: round(float(value), 3) for name, value in {**found, "longest": max(values)}.items()}


def _shown(found: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3g}" for name, value in found.items()) or "-"


def _listed(failures: dict[str, int]) -> str:
    return "".join(f", {count:,} failed: {status}" for status, count in sorted(failures.items()))
