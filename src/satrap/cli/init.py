"""`satrap init`."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import Any

import click

from satrap.cli.options import debug_option
from satrap.errors import ConfigError
from satrap.words import counted


@click.command()
@click.argument("data", nargs=-1, required=True)
@click.option("--label", required=True, metavar="COL", help="Column to predict.")
@click.option("--output", default="recipe.yaml", show_default=True, metavar="FILE", help="The recipe.")
@click.option("--force", is_flag=True, help="Replace the recipe if it is there.")
@click.option(
    "--test", multiple=True, metavar="FILE", help="Rows to judge the model by; default a tenth of DATA."
)
@click.option(
    "--kind",
    type=click.Choice(["binary", "regression", "multiclass"]),
    help="What the label is; default by its values.",
)
@click.option("--positive", multiple=True, metavar="VALUE", help="Value of the label that is 1; repeatable.")
@click.option("--threshold", type=float, help="Numbers of the label from here on are 1.")
@click.option("--weight", metavar="COL", help="Column that says how much a row counts.")
@click.option("--group", metavar="COL", help="Column to report AUC within, for example the user.")
@click.option("--time", metavar="COL", help="Column of times: the last rows are for validation and test.")
@click.option("--drop", multiple=True, metavar="COL", help="Column to leave out; repeatable.")
@click.option(
    "--keep",
    multiple=True,
    metavar="COL",
    help="Column to use though it looks like a copy of the label; repeatable.",
)
@click.option(
    "--sample", "rows", type=click.IntRange(1), metavar="ROWS", help="Read only the first ROWS rows."
)
@click.option("--format", metavar="NAME", help="csv, tsv, parquet or arrow; default by the names.")
@click.option("--separator", metavar="C", help="Between the columns of CSV; default by the header.")
@click.option("--encoding", default="utf-8", show_default=True, metavar="NAME", help="Of the text of CSV.")
@click.option(
    "--quote",
    default='"',
    show_default=True,
    metavar="C",
    help="Around values of CSV; '' if quotes are text.",
)
@click.option("--names", metavar="A,B,C", help="Columns of CSV without a line of names, in their order.")
@debug_option
def init(output: str, force: bool, names: str | None, **asked: Any) -> None:
    """Look at DATA (files, globs or URLs) and write a recipe to learn a column of it.

    Each choice in the recipe has its reason beside it. Then: satrap train recipe.yaml
    """
    from satrap.init import Request, make_recipe

    if Path(output).exists() and not force:
        raise ConfigError(f"{output} is there already", fix="--output FILE for another name, or --force")
    columns = [name.strip() for name in names.split(",")] if names else []
    with _Counting() as counting:
        found = make_recipe(Request(output=output, names=columns, **asked), counting)
    Path(output).parent.mkdir(parents=True, exist_ok=True)
    Path(output).write_text(found.text, encoding="utf-8")
    click.echo(
        f"{output}: {found.rows:,} rows; {counted(found.used, 'column')} used, {found.unused} left out"
    )
    for name, why in found.copies.items():
        click.echo(
            f"warning: {name} is left out: {why}; if it is known before the label, --keep {shlex.quote(name)}"
        )
    click.echo(f"next:\n  satrap train {output}")


class _Counting:
    """Shows on a terminal, once a second, how many rows have been read."""

    def __init__(self) -> None:
        self._shown = time.monotonic()
        self._terminal = sys.stderr.isatty()

    def __call__(self, rows: int) -> None:
        if self._terminal and time.monotonic() - self._shown > 1:
            self._shown = time.monotonic()
            click.echo(f"\r{rows:,} rows read", err=True, nl=False)

    def __enter__(self) -> _Counting:
        return self

    def __exit__(self, *_: object) -> None:
        if self._terminal:
            click.echo("\r\x1b[K", err=True, nl=False)
