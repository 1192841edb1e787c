"""Simulation of a recipe with calibrated costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from satrap.config import Recipe
from satrap.errors import ConfigError
from satrap.exchange.kernels import row_bytes
from satrap.launch.placement import Facts
from satrap.plan.cost import ID_BYTES
from satrap.tools.plan.recipe_cluster import counted
from satrap.tools.plan.simulate.availability import Deaths, survive
from satrap.tools.plan.simulate.cluster import simulate
from satrap.tools.plan.simulate.costs import DISTURBED, Calibration, MachineCosts
from satrap.tools.plan.simulate.report import AS_ASKED, Simulated, what_if
from satrap.tools.plan.simulate.setup import Setup

WORKER_STEPS = 20_000
"""Default number of simulated steps over all workers; each worker takes `FEWEST` to `MOST` steps."""
FEWEST, MOST = 20, 200


@dataclass(frozen=True, slots=True)
class Question:
    """Settings of a simulation.

    Args:
        spread: each process has its own host; default all are on one host.
        cores: cores of a host, default as on the calibrated machine.
        bandwidth: bytes/s of a host, default 1.25e9.
        latency: network seconds per message in addition to the calibrated latency, default 0.
        steps: steps of each worker, default 20 to 200, so that all workers together take about 20,000.
        what_if: also simulate other modes, a straggler, a hot and a lost shard, other traffic, other sizes.
        hours: hours of a simulated run with failures, default none.
        mean_hours: mean hours between two failures of a process, default 1000.
        snapshot_every: seconds between snapshots, default 600.
        snapshot_pause: seconds that a snapshot stops the workers, default 0.
        restart: seconds of a restart, default 60.
        seed: seed of random numbers, default 1.
    """

    spread: bool = False
    cores: int | None = None
    bandwidth: float = 1.25e9
    latency: float = 0.0
    steps: int | None = None
    what_if: bool = False
    hours: float | None = None
    mean_hours: float = 1000.0
    snapshot_every: float = 600.0
    snapshot_pause: float = 0.0
    restart: float = 60.0
    seed: int = 1


def simulate_recipe(
    recipe: Recipe,
    calibration: Calibration,
    question: Question = Question(),
    facts: Facts = Facts(),
    *,
    notice: Callable[[str], None] = lambda _: None,
) -> Simulated:
    """Simulate a recipe; reads some batches of its training rows, and trains nothing.

    Args:
        recipe: the recipe, with its processes.
        calibration: calibration of this recipe or of one with the same model, see
            `satrap.tools.plan.calibration`.
        question: settings of the simulation.
        facts: `batches` is used.
        notice: called with a line of text for the user.

    Raises:
        ConfigError: the recipe has embedding workers, loaders or a mesh that divides the network.
        DataError: no training rows.
    """
    costs = MachineCosts(calibration)
    if calibration.disturbed > DISTURBED:
        notice(
            f"warning: other programs used {calibration.disturbed:.1f} cores during the calibration\n"
            "  why it matters: waiting times and predicted times are too long\n"
            "  what to do: calibrate again on an idle machine"
        )
    setup, sent, received = _setup(recipe, costs, question, facts, notice)
    setups = {AS_ASKED: setup} | (what_if(setup) if question.what_if else {})
    outcomes = {}
    for name, case in setups.items():
        outcomes[name] = simulate(case, costs.work(case, sent=sent, received=received))
    survived = None
    if question.hours is not None:
        deaths = Deaths(
            setup.workers,
            setup.shards if setup.exchange == "servers" else 0,
            question.mean_hours,
            question.restart,
            question.snapshot_every,
            question.snapshot_pause,
            recipe.sections.checkpoint.durability == "journal",
        )
        survived = survive(deaths, question.hours, question.seed)
    origin = f"calibrated with {calibration.recipe} on {calibration.date}"
    return Simulated(recipe.name, outcomes, costs, origin, survived)


def _setup(
    recipe: Recipe, costs: MachineCosts, question: Question, facts: Facts, notice: Callable[[str], None]
) -> tuple[Setup, float, float]:
    """Return the setup of the simulation, and the bytes per step from and to a worker."""
    sections = recipe.sections
    cluster, training = sections.cluster, sections.training
    if cluster.embedding_workers or cluster.loaders or sections.shares != cluster.workers:
        raise ConfigError(
            "simulation does not support embedding workers, loaders and sharded networks yet",
            where=recipe.source.file,
            fix="simulate without them: --set cluster.embedding_workers=0 --set cluster.loaders=0",
        )
    load, model = counted(recipe, facts, notice=notice)
    tables = load.tables
    ids = sum(table.distinct for table in tables) * ID_BYTES
    forward, backward = (
        sum(t.distinct * row_bytes(code, t.dim) for t in tables) for code in (load.forward, load.backward)
    )
    setup = Setup(
        cluster.exchange,
        training.mode,
        training.lookahead if training.mode == "sync" else training.staleness,
        cluster.workers,
        len(cluster.addresses) or cluster.shards,
        load.batch_size,
        sum(table.distinct for table in tables),
        sum(table.distinct * table.dim for table in tables),
        4.0 * sum(parameter.numel() for parameter in model.parameters()),
        question.cores or costs.cores,
        together=not question.spread,
        bandwidth=question.bandwidth,
        latency=question.latency,
        steps=question.steps or min(max(WORKER_STEPS // cluster.workers, FEWEST), MOST),
        seed=question.seed,
    )
    return setup, 2 * ids + backward, forward
