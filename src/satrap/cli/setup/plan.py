"""`satrap plan`."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from satrap.cli.options import byte_size, debug_option, json_option, notice, set_option

if TYPE_CHECKING:
    from satrap.config import Recipe
    from satrap.launch.placement import Facts


def _counts(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, int]:
    counts = {}
    for value in values:
        name, _equals, count = value.rpartition("=")
        try:
            number = float(count)
        except ValueError:
            number = math.nan
        if not name or not number >= 0 or number % 1:
            raise click.BadParameter(f"{value!r} is not NAME=N with a whole number N, such as 1000000 or 1e6")
        counts[name] = int(number)
    return counts


speed = click.FloatRange(min=0, min_open=True)
SIMULATION = (
    "spread",
    "cores",
    "steps",
    "what_if",
    "hours",
    "mean_hours",
    "snapshot_every",
    "snapshot_pause",
)
"""Options of --simulate, in addition to --bandwidth, --latency and --batches."""


@click.command()
@click.argument("recipe")
@set_option
@json_option
@click.option(
    "--workers", type=click.IntRange(1), help="Number of workers to plan for; default cluster.workers."
)
@click.option(
    "--batches",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    help="Number of training batches to read.",
)
@click.option("--run", metavar="DIR", help="Run folder or checkpoint to take the number of rows from.")
@click.option(
    "--rows",
    multiple=True,
    metavar="TABLE=N",
    callback=_counts,
    help="Number of rows of a table; repeatable.",
)
@click.option(
    "--memory", metavar="SIZE", callback=byte_size, help="Memory for rows per worker, for example 4GiB."
)
@click.option("--bandwidth", type=speed, help="Bytes/s between workers; default 1.25e9.")
@click.option("--latency", type=speed, help="Seconds that an empty all-to-all takes; default 200e-6.")
@click.option("--lookups", type=speed, help="Rows/s that a worker looks up; default by dim.")
@click.option("--updates", type=speed, help="Rows/s that a worker updates; default by dim.")
@click.option("--measure", is_flag=True, help="Measure the speeds that are not given, on this machine.")
@click.option(
    "--parameters",
    type=speed,
    help="Plan a cluster for tables with this number of parameters, for example 100e12.",
)
@click.option(
    "--machines", metavar="FILE", help="TOML file of kinds of hosts; default: instances of three clouds."
)
@click.option(
    "--hosts", multiple=True, metavar="KIND=N", callback=_counts, help="Available hosts; repeatable."
)
@click.option("--budget", type=speed, help="Maximum cost of the hosts in $/h.")
@click.option("--samples", type=speed, help="Number of samples to train on, for hours and cost.")
@click.option("--devices", type=click.IntRange(1), help="Propose a mesh for this number of devices.")
@click.option(
    "--device-memory",
    metavar="SIZE",
    callback=byte_size,
    help="Memory of each device, for the dense network or for rows, for example 24GiB; for rows, default "
    "the free memory of this machine's GPU.",
)
@click.option(
    "--device-flops",
    type=speed,
    help="FLOP/s that the dense network reaches on a device.",
)
@click.option("--calibrate", metavar="FILE", help="Measure short real runs on this machine for --simulate.")
@click.option(
    "--rounds",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Rounds of --calibrate; medians are used.",
)
@click.option("--simulate", is_flag=True, help="Simulate the training of the recipe's processes.")
@click.option("--calibration", metavar="FILE", help="File written by --calibrate; default: calibrate now.")
@click.option("--spread", is_flag=True, help="Simulate one host per process; default one host for all.")
@click.option("--cores", type=click.IntRange(1), help="Cores of a host; default as calibrated.")
@click.option(
    "--steps",
    type=click.IntRange(10),
    help="Steps to simulate, default 20 to 200, or to measure, default 80.",
)
@click.option(
    "--what-if",
    is_flag=True,
    help="Also simulate other modes, stragglers, hot and lost shards, and other sizes.",
)
@click.option("--hours", type=speed, help="Duration of a simulated run with failures and snapshots.")
@click.option("--mean-hours", type=speed, help="Mean hours between two failures of a process; default 1000.")
@click.option("--snapshot-every", type=speed, help="Seconds between snapshots; default 600.")
@click.option("--snapshot-pause", type=speed, help="Seconds that a snapshot stops workers; default 0.")
@click.option("--output", metavar="FILE", help="Write the simulation as an HTML page.")
@debug_option
def plan(
    recipe: str,
    overrides: tuple[str, ...],
    as_json: bool,
    parameters: float | None,
    devices: int | None,
    device_memory: int | None,
    device_flops: float | None,
    **facts: Any,
) -> int:
    """Compute where to place the tables of RECIPE, and the cost of a step.

    The plan is for workers that hold the tables (cluster.exchange: collective) or, with --parameters, for the
    shard servers of a cluster to rent: hosts, price, speed and bottleneck. If several workers share shard
    servers in mode hybrid, it also shows which tables every worker holds, and why. The exit code is 1 if the
    rows do not fit. With dense.mesh, the plan also has the memory of each process; with --devices, it
    proposes a mesh, and the exit code is 1 if none fits. With --device-memory, or a GPU here, it has the
    memory of rows on a GPU. Reads some batches of the training data, trains nothing and changes nothing.

    --calibrate measures the cost of each operation on this machine with short real runs of a minute or two.
    --simulate simulates the training with these costs, here or on many hosts; without --calibration it
    calibrates first. Completed runs are saved in NAME.partial.json: after an interruption, repeat the command
    to resume.
    """
    from satrap.config import load
    from satrap.launch import placement
    from satrap.tools.plan.cluster.report import report
    from satrap.tools.plan.recipe_cluster import plan_size

    simulation = {name: facts.pop(name) for name in SIMULATION}
    files = {name: facts.pop(name) for name in ("calibrate", "simulate", "calibration", "output", "rounds")}
    if files["calibrate"] or files["simulate"]:
        return _simulate(recipe, overrides, as_json, {**files, **facts}, simulation)
    if any(simulation.values()) or files["calibration"] or files["output"]:
        raise click.UsageError("--calibration, --output, --hours and similar options need --simulate")
    cluster = {name: facts.pop(name) for name in ("machines", "hosts", "budget", "samples")}
    loaded, inputs = load(recipe, overrides), placement.Facts(**facts)

    if parameters is None:
        if any(cluster.values()):
            raise click.UsageError("--machines, --hosts, --budget and --samples need --parameters")
        if devices is not None and device_memory is None:
            raise click.UsageError("--devices needs --device-memory")
        return _place(loaded, inputs, as_json, devices, device_memory, device_flops)
    if any(option is not None for option in (devices, device_memory, device_flops)):
        raise click.UsageError("--devices, --device-memory and --device-flops exclude --parameters")
    sized = plan_size(loaded, parameters, inputs, **cluster, notice=notice)
    click.echo(json.dumps(sized.to_dict(), indent=2) if as_json else report(sized))
    return 0 if sized.fits else 1


def _place(
    recipe: Recipe,
    facts: Facts,
    as_json: bool,
    devices: int | None,
    memory: int | None,
    flops: float | None,
) -> int:
    from satrap.launch.placement import may_replicate, plan, replicas
    from satrap.plan.replicas import report as held
    from satrap.plan.topology import BANDWIDTH
    from satrap.tools.plan.dense import Speed
    from satrap.tools.plan.dense.report import report
    from satrap.tools.plan.device_rows import rows_on_device
    from satrap.tools.plan.recipe_dense import plan_network

    placed = plan(recipe, facts, notice=notice)
    reached = None if flops is None else Speed(flops, facts.bandwidth or BANDWIDTH)
    dense = plan_network(recipe, devices, memory, reached)
    rows = rows_on_device(recipe, placed, memory, notice)
    stale = may_replicate(recipe.sections, placed.topology.workers)
    choices = replicas(recipe, facts, placed.workload) if stale else {}
    if as_json:
        also = {"dense": dense, "rows_on_device": rows}
        parts = {name: part.to_dict() for name, part in also.items() if part is not None}
        if choices:
            parts["with_shards"] = {name: asdict(choice) for name, choice in choices.items()}
        click.echo(json.dumps(placed.to_dict() | parts, indent=2))
    else:
        texts = [placed.report(), choices and held(choices), dense and report(dense), rows and rows.report()]
        click.echo("\n\n".join(text for text in texts if text))
    return 0 if dense is None or dense.fits else 1


def _simulate(
    recipe: str, overrides: tuple[str, ...], as_json: bool, given: dict[str, Any], simulation: dict[str, Any]
) -> int:
    from satrap.config import load
    from satrap.errors import ConfigError
    from satrap.launch.folder.run_folder import write_whole
    from satrap.launch.placement import Facts
    from satrap.tools.plan.calibration import STEPS, calibrate
    from satrap.tools.plan.recipe_simulation import Question, simulate_recipe
    from satrap.tools.plan.simulate.costs import Calibration

    page, target = given["output"], given["calibrate"]
    if page is not None and Path(page).suffix != ".html":
        raise ConfigError(
            f"--output {page!r} does not end in .html", fix="give --output a name that ends in .html"
        )
    if given["calibration"] and not target:
        measured = Calibration.read(given["calibration"])
    else:
        steps = simulation["steps"] or STEPS
        partial = Path(target or f"{Path(recipe).stem}.calibration").with_suffix(".partial.json")
        try:
            measured = calibrate(
                recipe, overrides, rounds=given["rounds"], steps=steps, kept=partial, notice=notice
            )
        except KeyboardInterrupt:
            if not partial.exists():
                raise
            notice(f"interrupted; repeat the command to resume from the runs in {partial}")
            return 1
    if target:
        measured.write(target)
        click.echo(f"calibration: {target}", err=as_json)
    if not given["simulate"]:
        return 0
    settings = {name: value for name, value in simulation.items() if value is not None}
    settings |= {name: given[name] for name in ("bandwidth", "latency") if given[name] is not None}
    facts = Facts(batches=given["batches"])
    simulated = simulate_recipe(load(recipe, overrides), measured, Question(**settings), facts, notice=notice)
    click.echo(json.dumps(simulated.to_dict(), indent=2) if as_json else simulated.report())
    if page is not None:
        write_whole(Path(page), simulated.page())
        click.echo(f"page: {page}", err=as_json)
    return 0
