"""`satrap export`: the network of a run, and the vectors of its items, for other systems."""

from __future__ import annotations

from pathlib import Path

import click

from satrap.cli.options import debug_option, set_option
from satrap.cli.scoring import step_option


@click.group()
def export() -> None:
    """Write what a trained run has for other systems."""


@export.command()
@click.argument("folder", metavar="DIR")
@click.argument("output", metavar="FILE", type=click.Path(path_type=Path))
@step_option
@debug_option
def network(folder: str, output: Path, step: int | None) -> None:
    """Write the network of run folder DIR to FILE.pt2, a program of torch.export, and FILE.json beside it.

    It takes pooled rows and numbers, for a batch of any size, and gives predictions: lookup and pooling stay
    outside. FILE.json says what the columns of its inputs and outputs are. satrap is not needed to load it.
    """
    from satrap import launch
    from satrap.export import export_network

    about = export_network(launch.RunFolder.open(folder), output, step=step)
    inputs = ", ".join(f"{one['name']} [batch, {one['shape'][1]}]" for one in about["inputs"])
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
    help="A row for each item; may be repeated. Default: the items of the recipe's training rows.",
)
@click.option(
    "--id", "column", metavar="COL", help="Column of the ids. Default: of the tower's first feature."
)
@click.option(
    "--tower", type=click.Choice(["item", "user"]), default="item", show_default=True, help="Whose vectors."
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

    The file has the ids as in the data, and `vector`, float32 of fixed length. The larger the dot product of
    a user's vector and an item's, the higher the score. --set works as for `satrap evaluate`.
    """
    from satrap import launch
    from satrap.export import export_items
    from satrap.words import counted

    run = launch.RunFolder.open(folder)
    count = export_items(run, output, sources, overrides, column=column, tower=tower, step=step)
    click.echo(f"{counted(count, 'vector')} written to {output}")
