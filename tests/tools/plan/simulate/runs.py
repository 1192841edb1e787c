"""A machine that does not exist: its costs are known, so its calibration can be computed."""

from __future__ import annotations

from dataclasses import replace

from satrap.tools.plan.calibration import Case, cases
from satrap.tools.plan.simulate.cluster import StepWork, simulate
from satrap.tools.plan.simulate.costs import LOOKUP, RECEIVE, SEND, Calibration, MeasuredRun
from satrap.tools.plan.simulate.measured import Measured
from satrap.tools.plan.simulate.setup import Setup

CORES = 2
TURN, HOP, SUM, TALK = 2e-4, 3e-4, 4e-4, 5e-4


def costs(samples: float, rows: float, values: float) -> dict[str, float]:
    """Return seconds of a worker's threads, and of all shards for one worker, but for constants."""
    return {
        "reader": 1e-4 + 1e-7 * samples,
        "main": 5e-4 + 2e-6 * samples + 3e-9 * values,
        "exchange": 2e-8 * rows + 4e-10 * values,
        "other": 0.0,
        "shards": 3e-8 * rows + 5e-10 * values,
    }


def run(case: Case) -> MeasuredRun:
    """Return what a case would measure: 4 distinct rows of 16 numbers per sample."""
    samples = 512 * case.batch
    rows, values = 4 * samples, 4 * samples * 16 * case.dim
    own, several = costs(samples, rows, values), case.workers > 1
    collective = case.exchange == "collective"
    own["exchange"] += 2e-4 * (1 if case.exchange != "servers" else case.shards)
    own["reader"] += 1e-4 * several
    own["main"] += 2e-4 * several
    shards = own.pop("shards") / case.shards + 1e-4
    setup = Setup(
        case.exchange, case.mode, case.ahead, case.workers, case.shards, samples, rows, values, 1e5, CORES
    )
    work = StepWork(
        own["reader"],
        own["main"],
        own["other"],
        send=SEND * own["exchange"],
        receive=RECEIVE * own["exchange"],
        push=(1 - SEND - RECEIVE) * own["exchange"],
        lookup=LOOKUP * shards,
        update=(1 - LOOKUP) * shards,
        turn=TURN,
        hop=HOP,
        meet=TALK if collective else SUM,
    )
    seconds = simulate(replace(setup, steps=60), work).step_seconds
    holders = {"local": 0, "servers": case.shards, "collective": case.workers}[case.exchange]
    served = case.exchange == "servers"
    all_shards = case.workers * case.shards * shards * served
    busy = min((case.workers * sum(own.values()) + all_shards) / seconds * case.copies, CORES)
    sizes = {"samples": samples, "rows": rows, "values": values, "dense": 1e5}
    rest = {"seconds": seconds, "waited": 0.0, "sent": 0.0, "received": 0.0, "spread": 0.0, "busy": busy}
    found = Measured(workers=case.workers, holders=holders, **sizes, **rest, **own, shards=all_shards)
    return MeasuredRun(case.exchange, case.mode, case.ahead, found, case.copies)


def calibration() -> Calibration:
    """Return the calibration of this machine."""
    return Calibration([run(case) for case in cases(CORES)], CORES, "made.yaml", "2026-11-24")
