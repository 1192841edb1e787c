"""The report of a load test, as numbers and as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from satrap.runtime.formatting import counted
from satrap.serve.loadtest.generator import RequestOutcome
from satrap.serve.loadtest.offline import Comparison

SHARES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
"""Name -> quantile of the latencies."""


@dataclass(frozen=True, slots=True)
class Report:
    """The results of a load test.

    Args:
        outcomes: outcomes of the requests, in the order in which they were due.
        rate: requested rate, requests per second.
        seconds: duration of the test.
        items: maximum number of items of a request.
        rollbacks: how often an operator rolled back during the test.
        comparison: comparison with offline scores; None: not made.
        tolerance: tolerance of the comparison.
    """

    outcomes: Sequence[RequestOutcome]
    rate: float
    seconds: float
    items: int
    rollbacks: int = 0
    comparison: Comparison | None = None
    tolerance: float = 1e-6

    @property
    def failures(self) -> dict[str, int]:
        """Number of requests without scores, by status."""
        return dict(Counter(o.status for o in self.outcomes if not o.answered))

    @property
    def falls(self) -> int:
        """Number of answers from an older step than an answer received before their request was sent."""
        return sum(o.answered and o.step < o.newest for o in self.outcomes)

    @property
    def steps(self) -> list[int]:
        """The steps of the answers, ascending."""
        return sorted({o.step for o in self.outcomes if o.answered})

    @property
    def right(self) -> bool:
        """Whether all requests have scores, none is wrong, and steps decreased only after a rollback."""
        compared = self.comparison
        wrong = compared is not None and (compared.wrong > 0 or (compared.right == 0 and bool(self.steps)))
        return bool(self.outcomes) and not (self.failures or (self.falls and not self.rollbacks) or wrong)

    def latency(self) -> dict[str, float]:
        """Return the latency in milliseconds from when requests were due: `SHARES` and the longest."""
        return _percentiles([1000 * o.latency for o in self.outcomes if o.answered])

    def stages(self) -> dict[str, dict[str, float]]:
        """Return the milliseconds of each stage as reported by the server, like `latency`; may be empty."""
        answered = [o.stages for o in self.outcomes if o.answered and o.stages]
        names = dict.fromkeys(name for stages in answered for name in stages)
        return {
            name: _percentiles([1000 * stages[name] for stages in answered if name in stages])
            for name in names
        }

    def lag(self) -> dict[str, float]:
        """Return the delay in milliseconds with which requests were sent while a connection was free."""
        return _percentiles([1000 * (o.sent - o.due) for o in self.outcomes if o.sent and not o.waited])

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
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
            "waited_for_connection": sum(o.waited for o in self.outcomes),
            "right": self.right,
        }

    def lines(self) -> list[str]:
        """Return the report as lines of text."""
        answered = len(self.outcomes) - sum(self.failures.values())
        waited = sum(o.waited for o in self.outcomes)
        lines = {
            "requests": f"{len(self.outcomes):,} in {self.seconds:g} s, due at {self.rate:g} per second, "
            f"up to {counted(self.items, 'item')} each",
            "answers": f"{answered:,}{_listed(self.failures)}",
            "latency": f"{_shown(self.latency())} ms after a request was due",
            **{f"  {stage}": _shown(times) for stage, times in self.stages().items()},
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
        span = f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,} ({len(steps)} steps)"
        back = f", rolled back {counted(self.rollbacks, 'time')}" if self.rollbacks else ""
        if not self.falls:
            return f"{span}, never decreasing{back}"
        return f"{span}; {counted(self.falls, 'answer')} from an older step than an earlier answer{back}"

    def _scores(self, compared: Comparison) -> str:
        text = f"{compared.right:,} match satrap predict within {self.tolerance:g}"
        if compared.wrong:
            steps = ", ".join(f"{step:,}" for step in sorted(compared.wrong_steps)[:8])
            text += f", {compared.wrong:,} wrong by up to {compared.largest:.2g} (steps {steps})"
        if compared.unknown:
            text += f", {compared.unknown:,} from steps that no longer exist"
        return text


def _percentiles(values: Sequence[float]) -> dict[str, float]:
    """Return the quantiles `SHARES` of some values, and the longest; empty without values."""
    if not values:
        return {}
    quantiles = {name: np.quantile(values, share, method="higher") for name, share in SHARES.items()}
    return {name: round(float(value), 3) for name, value in {**quantiles, "longest": max(values)}.items()}


def _shown(found: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3g}" for name, value in found.items()) or "-"


def _listed(failures: dict[str, int]) -> str:
    return "".join(f", {count:,} failed: {status}" for status, count in sorted(failures.items()))
