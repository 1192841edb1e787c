"""`satrap plan`."""

import json
from typing import Any

import click

from satrap.cli.options import byte_size, debug_option, json_option, set_option


def _counts(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, int]:
    found = {}
    for value in values:
        name, _equals, count = value.rpartition("=")
        if not name or not count.isdigit():
            raise click.BadParameter(f"{value!r} is not NAME=N")
        found[name] = int(count)
    return found


speed = click.FloatRange(min=0, min_open=True)


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
@debug_option
def plan(
    recipe: str,
    overrides: tuple[str, ...],
    as_json: bool,
    parameters: float | None,
    devices: int | None,
    device_memory: int | None,
    **facts: Any,
) -> int:
    """Say where the tables of RECIPE should live, and what a step then costs.

    Among workers that hold the tables together (cluster.exchange: collective), or, with --parameters, on the
    shard servers of a cluster that is yet to be rented: hosts, price, speed and what limits it; exit code 1
    if the rows do not fit. Where dense.mesh spreads the network, also what each process needs for its part,
    and with --devices which mesh fits; exit code 1 if none does. Reads some batches of the training data;
    trains nothing and changes nothing.
    """
    from satrap.config import load
    from satrap.launch import planning
    from satrap.launch.dense_plan import plan_network
    from satrap.plan.cluster.report import report
    from satrap.plan.dense.report import report as report_dense

    cluster = {name: facts.pop(name) for name in ("machines", "hosts", "budget", "samples")}
    asked, known = load(recipe, overrides), planning.Facts(**facts)

    def notice(text: str) -> None:
        click.echo(text, err=True)

    if parameters is None:
        if any(cluster.values()):
            raise click.UsageError("--machines, --hosts, --budget and --samples belong to --parameters")
        if devices is not None and device_memory is None:
            raise click.UsageError("--devices needs --device-memory")
        found = planning.plan(asked, known, notice=notice)
        dense = plan_network(asked, devices, device_memory)
        if as_json:
            of_dense = {} if dense is None else {"dense": dense.to_dict()}
            click.echo(json.dumps(found.to_dict() | of_dense, indent=2))
        else:
            click.echo(found.report() + ("" if dense is None else f"\n\n{report_dense(dense)}"))
        return 0 if dense is None or dense.fits else 1
    if devices is not None or device_memory is not None:
        raise click.UsageError("--devices and --device-memory do not go with --parameters")
    sized = planning.plan_size(asked, parameters, known, **cluster, notice=notice)
    click.echo(json.dumps(sized.to_dict(), indent=2) if as_json else report(sized))
    return 0 if sized.fits else 1
