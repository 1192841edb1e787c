"""A report says what the outcomes say, by NumPy, and is right only if nothing is wrong."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np

from satrap.serve.loadtest.generator import RequestOutcome
from satrap.serve.loadtest.offline import Comparison
from satrap.serve.loadtest.report import Report

MS = np.random.default_rng(0).exponential(4, 2000)


def outcome(i: int) -> RequestOutcome:
    due = i * 0.01
    stages = {"wait": MS[i] / 2000, "network": 0.001}
    return RequestOutcome(0, due, due + 0.0002, due + MS[i] / 1000, "200", 5 + i // 1000, 5, stages)


GOOD = Report([outcome(i) for i in range(2000)], 100, 20, 100)


def test_percentiles_are_those_of_numpy() -> None:
    found = GOOD.latency()
    ordered = np.sort(MS)
    assert found["longest"] == round(float(ordered[-1]), 3)
    for name, share in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)):
        within = np.mean(found[name] + 0.001 >= MS)
        assert share <= within < share + 2 / len(MS)
    assert GOOD.stages()["network"] == dict.fromkeys(("p50", "p99", "p99.9", "longest"), 1.0)
    assert abs(GOOD.stages()["wait"]["p50"] - found["p50"] / 2) < 0.002
    assert GOOD.lag()["p99"] == 0.2


def test_a_report_without_a_fault_is_right() -> None:
    assert GOOD.right
    assert (GOOD.steps, GOOD.falls, GOOD.failures) == ([5, 6], 0, {})
    assert replace(GOOD, comparison=Comparison(right=2000)).right
    assert json.loads(json.dumps(GOOD.to_dict()))["right"] is True
    text = "\n".join(GOOD.lines())
    assert "2,000 in 20 s, due at 100 per second, up to 100 items each" in text
    assert "5 to 6 (2 steps), never decreasing" in text


def test_each_fault_is_one() -> None:
    failed = replace(
        GOOD, outcomes=[*GOOD.outcomes, RequestOutcome(0, 1, 1, 2, "503"), RequestOutcome(0, 1, 0, 2)]
    )
    assert not failed.right
    assert failed.failures == {"503": 1, "no answer": 1}
    assert failed.latency() == GOOD.latency(), "failures have no latency"
    assert "2,000, 1 failed: 503, 1 failed: no answer" in "\n".join(failed.lines())
    older = replace(GOOD, outcomes=[*GOOD.outcomes, RequestOutcome(0, 1, 1, 2, "200", 4, 5)])
    assert (older.falls, older.right) == (1, False)
    assert "1 answer from an older step than an earlier answer" in "\n".join(older.lines())
    assert replace(older, rollbacks=1).right, "an operator went back"
    wrong = replace(GOOD, comparison=Comparison(1999, 1, 0, 0.25, {6}))
    assert not wrong.right
    assert "1 wrong by up to 0.25 (steps 6)" in "\n".join(wrong.lines())
    assert not replace(GOOD, comparison=Comparison(unknown=2000)).right, "nothing was compared"
    assert not replace(GOOD, outcomes=[]).right
    for report in (failed, older, wrong, replace(GOOD, outcomes=[])):
        json.dumps(report.to_dict())
        report.lines()
