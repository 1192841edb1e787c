"""`satrap export`: writes the network of a run and the vectors of its items for other systems."""

from __future__ import annotations

from pathlib import Path

import click

from satrap.cli.options import debug_option, set_option
from satrap.cli.trained.scoring import step_option


@click.group()
def export() -> None:
    """Write the network or item vectors of a trained run for other systems."""


@export.command()
@click.argument("folder", metavar="DIR")
@click.argument("output", metavar="FILE", type=click.Path(path_type=Path))
@step_option
@debug_option
def network(folder: str, output: Path, step: int | None) -> None:
    """Write the network of run folder DIR as a torch.export program, FILE.pt2, described in FILE.json.

    The program maps pooled rows and numeric features to predictions, for any batch size. Lookup and pooling
    are not part of it. FILE.json describes the columns of its inputs and outputs. Loading the program does
    not need satrap.
    """
    from satrap import launch
    from satrap.export import export_network

    about = export_network(launch.RunFolder.open(folder), output, step=step)
    inputs = ", ".join(f"{entry['name']} [batch, {entry['shape'][1]}]" for entry in about["inputs"])
    click.echo(f"network   {output}, step {about['step']:,}")
    click.echo(f"inputs    {inputs}")
    click.echo(f"outputs   {', '.join(about['outputs'][0]['columns'])}")


@export.command()
@click.argument("folder", metavar="DIR")
@click.argument("output", metavar="FILE", type=click.Path(path_type=Path))
@click.option(
    "--input",
    "sources",
    multiple=True,
    metavar="FILE",
    help="File with one row per item; may be repeated. Default: the items of the recipe's training rows.",
)
@click.option(
    "--id",
    "column",
    metavar="COL",
    help="Column of the ids; default the column of the tower's first feature.",
)
@click.option(
    "--tower",
    type=click.Choice(["item", "user"]),
    default="item",
    show_default=True,
    help="Tower whose vectors to write.",
)
@step_option
@set_option
@debug_option
def items(
    folder: str,
    output: Path,
    sources: tuple[str, ...],
    column: str | None,
    tower: str,
    step: int | None,
    overrides: tuple[str, ...],
) -> None:
    """Write the vectors of the items of a two-tower model in run folder DIR to FILE.parquet.

    The file has the ids as in the data, and `vector`, float32 of fixed length. A larger dot product of a user
    vector and an item vector means a higher score. --set works as in `satrap evaluate`.
    """
    from satrap import launch
    from satrap.export import export_items
    from satrap.runtime.formatting import counted

    run = launch.RunFolder.open(folder)
    count = export_items(run, output, sources, overrides, column=column, tower=tower, step=step)
    click.echo(f"{counted(count, 'vector')} written to {output}")
