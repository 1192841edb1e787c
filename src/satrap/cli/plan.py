"""`satrap plan`."""

import json
from pathlib import Path
from typing import Any

import click

from satrap.cli.options import byte_size, debug_option, json_option, notice, set_option


def _counts(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, int]:
    found = {}
    for value in values:
        name, _equals, count = value.rpartition("=")
        if not name or not count.isdigit():
            raise click.BadParameter(f"{value!r} is not NAME=N")
        found[name] = int(count)
    return found


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
"""Options that belong to --simulate, besides --bandwidth, --latency and --batches."""


@click.command()
@click.argument("recipe")
@set_option
@json_option
@click.option("--workers", type=click.IntRange(1), help="Workers to plan for; default cluster.workers.")
@click.option(
    "--batches", type=click.IntRange(1), default=20, show_default=True, help="Training batches to read."
)
@click.option("--run", metavar="DIR", help="Run folder or checkpoint that knows how many rows there are.")
@click.option(
    "--rows", multiple=True, metavar="TABLE=N", callback=_counts, help="Rows of a table; repeatable."
)
@click.option("--memory", metavar="SIZE", callback=byte_size, help="For rows, per worker, for example 4GiB.")
@click.option("--bandwidth", type=speed, help="Bytes/s between workers; default 1.25e9.")
@click.option("--latency", type=speed, help="Seconds of an empty all-to-all; default 200e-6.")
@click.option("--lookups", type=speed, help="Rows/s that a worker looks up; default by dim.")
@click.option("--updates", type=speed, help="Rows/s that a worker updates; default by dim.")
@click.option("--measure", is_flag=True, help="Measure on this machine what is not given.")
@click.option("--parameters", type=speed, help="Plan a cluster for tables of this size, for example 100e12.")
@click.option(
    "--machines", metavar="FILE", help="TOML file of kinds of hosts; default those of three clouds."
)
@click.option(
    "--hosts", multiple=True, metavar="KIND=N", callback=_counts, help="Hosts there are; repeatable."
)
@click.option("--budget", type=speed, help="Most $/h that the hosts may cost.")
@click.option("--samples", type=speed, help="Samples to train, for hours and cost.")
@click.option("--devices", type=click.IntRange(1), help="Propose a mesh for so many devices.")
@click.option(
    "--device-memory", metavar="SIZE", callback=byte_size, help="Of each, for the dense network: 24GiB."
)
@click.option(
    "--device-flops",
    type=speed,
    help="FLOP/s that the dense network reaches on a device.",
)
@click.option("--calibrate", metavar="FILE", help="Measure short real runs on this machine for --simulate.")
@click.option(
    "--rounds", type=click.IntRange(1), default=1, show_default=True, help="Of --calibrate: medians count."
)
@click.option("--simulate", is_flag=True, help="Simulate the training of the recipe's processes.")
@click.option("--calibration", metavar="FILE", help="What --calibrate wrote; default: calibrate now.")
@click.option("--spread", is_flag=True, help="A host for each process; default one for all.")
@click.option("--cores", type=click.IntRange(1), help="Of a host; default as calibrated.")
@click.option(
    "--steps", type=click.IntRange(10), help="To simulate, default 20 to 200; or to measure, default 80."
)
@click.option(
    "--what-if", is_flag=True, help="Also other modes, stragglers, hot and lost shards, other sizes."
)
@click.option("--hours", type=speed, help="Of a simulated run with deaths and snapshots.")
@click.option("--mean-hours", type=speed, help="Between two deaths of a process; default 1000.")
@click.option("--snapshot-every", type=speed, help="Seconds between snapshots; default 600.")
@click.option("--snapshot-pause", type=speed, help="Seconds that a snapshot stops workers; default 0.")
@click.option("--output", metavar="FILE", help="Write what was simulated as an HTML page.")
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
    """Say where the tables of RECIPE should live, and what a step then costs.

    Among workers that hold the tables together (cluster.exchange: collective), or, with --parameters, on the
    shard servers of a cluster that is yet to be rented: hosts, price, speed and what limits it; exit code 1
    if the rows do not fit. Where dense.mesh spreads the network, also what each process needs for its part,
    and with --devices which mesh fits; exit code 1 if none does. Reads some batches of the training data;
    trains nothing and changes nothing.

    --calibrate measures what each piece of work costs on this machine, by short real runs, for a minute or
    two; --simulate plays the training through with these costs, here or on many hosts. Without --calibration
    it calibrates first. Runs that are done stay in a file NAME.partial.json: the same command goes on.
    """
    from satrap.config import load
    from satrap.launch import planning
    from satrap.launch.dense_plan import plan_network
    from satrap.plan.cluster.report import report
    from satrap.plan.dense import Speed
    from satrap.plan.dense.report import report as report_dense
    from satrap.plan.topology import BANDWIDTH

    simulation = {name: facts.pop(name) for name in SIMULATION}
    files = {name: facts.pop(name) for name in ("calibrate", "simulate", "calibration", "output", "rounds")}
    if files["calibrate"] or files["simulate"]:
        return _simulate(recipe, overrides, as_json, {**files, **facts}, simulation)
    if any(simulation.values()) or files["calibration"] or files["output"]:
        raise click.UsageError("--calibration, --output, --hours and so on belong to --simulate")
    cluster = {name: facts.pop(name) for name in ("machines", "hosts", "budget", "samples")}
    asked, known = load(recipe, overrides), planning.Facts(**facts)

    if parameters is None:
        if any(cluster.values()):
            raise click.UsageError("--machines, --hosts, --budget and --samples belong to --parameters")
        if devices is not None and device_memory is None:
            raise click.UsageError("--devices needs --device-memory")
        found = planning.plan(asked, known, notice=notice)
        reached = None if device_flops is None else Speed(device_flops, known.bandwidth or BANDWIDTH)
        dense = plan_network(asked, devices, device_memory, reached)
        if as_json:
            of_dense = {} if dense is None else {"dense": dense.to_dict()}
            click.echo(json.dumps(found.to_dict() | of_dense, indent=2))
        else:
            click.echo(found.report() + ("" if dense is None else f"\n\n{report_dense(dense)}"))
        return 0 if dense is None or dense.fits else 1
    if any(given is not None for given in (devices, device_memory, device_flops)):
        raise click.UsageError("--devices, --device-memory and --device-flops do not go with --parameters")
    sized = planning.plan_size(asked, parameters, known, **cluster, notice=notice)
    click.echo(json.dumps(sized.to_dict(), indent=2) if as_json else report(sized))
    return 0 if sized.fits else 1


def _simulate(
    recipe: str, overrides: tuple[str, ...], as_json: bool, given: dict[str, Any], simulation: dict[str, Any]
) -> int:
    from satrap.config import load
    from satrap.errors import ConfigError
    from satrap.launch.calibration import STEPS, calibrate
    from satrap.launch.folder import write_whole
    from satrap.launch.planning import Facts
    from satrap.launch.simulating import Question, simulate_recipe
    from satrap.plan.simulate.costs import Calibration

    page, target = given["output"], given["calibrate"]
    if page is not None and Path(page).suffix != ".html":
        raise ConfigError(f"the page would be called {page!r}", fix="give --output a name that ends in .html")
    if given["calibration"] and not target:
        found = Calibration.read(given["calibration"])
    else:
        steps = simulation["steps"] or STEPS
        kept = Path(target or f"{Path(recipe).stem}.calibration").with_suffix(".partial.json")
        try:
            found = calibrate(
                recipe, overrides, rounds=given["rounds"], steps=steps, kept=kept, notice=notice
            )
        except KeyboardInterrupt:
            if not kept.exists():
                raise
            notice(f"interrupted; the same command goes on, with the runs in {kept}")
            return 1
    if target:
        found.write(target)
        click.echo(f"calibration: {target}", err=as_json)
    if not given["simulate"]:
        return 0
    said = {name: value for name, value in simulation.items() if value is not None}
    said |= {name: given[name] for name in ("bandwidth", "latency") if given[name] is not None}
    facts = Facts(batches=given["batches"])
    simulated = simulate_recipe(load(recipe, overrides), found, Question(**said), facts, notice=notice)
    click.echo(json.dumps(simulated.to_dict(), indent=2) if as_json else simulated.report())
    if page is not None:
        write_whole(Path(page), simulated.page())
        click.echo(f"page: {page}", err=as_json)
    return 0
