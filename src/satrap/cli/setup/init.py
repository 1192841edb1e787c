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
from satrap.runtime.formatting import counted


@click.command()
@click.argument("data", nargs=-1, required=True)
@click.option("--label", metavar="COL", help="Column to predict.")
@click.option("--item", metavar="COL", help="Instead of --label: items that users chose, one in each row.")
@click.option("--user", metavar="COL", help="With --item: the user of each row.")
@click.option(
    "--output", default="recipe.yaml", show_default=True, metavar="FILE", help="The recipe to write."
)
@click.option("--force", is_flag=True, help="Overwrite an existing recipe.")
@click.option(
    "--test", multiple=True, metavar="FILE", help="Rows to test the model on; default a tenth of DATA."
)
@click.option(
    "--kind",
    type=click.Choice(["binary", "regression", "multiclass"]),
    help="Kind of the label; default by its values.",
)
@click.option("--positive", multiple=True, metavar="VALUE", help="Value of the label that is 1; repeatable.")
@click.option("--threshold", type=float, help="Smallest number of the label that is 1.")
@click.option("--weight", metavar="COL", help="Column with the weight of each row.")
@click.option("--group", metavar="COL", help="Column to report AUC within, for example the user.")
@click.option("--time", metavar="COL", help="Column of times; the latest rows are for validation and test.")
@click.option("--drop", multiple=True, metavar="COL", help="Column to leave out; repeatable.")
@click.option(
    "--keep",
    multiple=True,
    metavar="COL",
    help="Column to use although it looks like a copy of the label; repeatable.",
)
@click.option(
    "--sample", "rows", type=click.IntRange(1), metavar="ROWS", help="Read only the first ROWS rows."
)
@click.option("--format", metavar="NAME", help="csv, tsv, parquet or arrow; default by file extension.")
@click.option("--separator", metavar="C", help="Separator of CSV columns; default by the header.")
@click.option(
    "--encoding", default="utf-8", show_default=True, metavar="NAME", help="Character encoding of CSV."
)
@click.option(
    "--quote",
    default='"',
    show_default=True,
    metavar="C",
    help="Quote character of CSV; '' for none.",
)
@click.option("--names", metavar="A,B,C", help="Column names, in order, of CSV files without a header line.")
@click.option(
    "--trial/--no-trial", default=True, show_default=True, help="Train shortly to choose counts of ids."
)
@click.option(
    "--baseline", is_flag=True, help="Train LightGBM, if it is installed, on the same rows to compare with."
)
@debug_option
def init(output: str, force: bool, names: str | None, baseline: bool, **asked: Any) -> None:
    """Examine DATA (files, globs or URLs) and write a recipe that predicts one of its columns (--label), or
    finds items for users from a log of their choices (--user, --item).

    Comments in the recipe give the reason for each choice. Next: satrap train recipe.yaml
    """
    from satrap.runtime.cuda import cuda_device
    from satrap.tools.init import InitRequest, make_recipe

    if baseline and asked["item"]:
        raise ConfigError("--baseline needs --label", fix="omit --baseline")
    if baseline:
        from satrap.tools.baseline import check_baseline

        check_baseline()
    if Path(output).exists() and not force:
        raise ConfigError(
            f"{output} already exists", fix="choose another --output FILE, or overwrite it with --force"
        )
    columns = [name.strip() for name in names.split(",")] if names else []
    with _Counting() as counting:
        request = InitRequest(output=output, names=columns, cuda=cuda_device(), **asked)
        draft = make_recipe(request, counting)
    Path(output).parent.mkdir(parents=True, exist_ok=True)
    Path(output).write_text(draft.text, encoding="utf-8")
    click.echo(
        f"{output}: {draft.rows:,} rows; {counted(draft.used, 'column')} used, {draft.unused} left out"
    )
    if draft.trial is not None:
        used = "used" if draft.trial.useful else "not used"
        click.echo(f"counts and mean labels of {', '.join(draft.trial.columns)}: {used}; {draft.trial}")
    for name, why in draft.copies.items():
        click.echo(
            f"warning: {name} is left out: {why}; if it is known before the label, use --keep "
            f"{shlex.quote(name)}"
        )
    for note in draft.notes:
        click.echo(f"warning: {note}")
    if baseline:
        _compare(output)
    click.echo(f"next:\n  satrap train {output}")


def _compare(output: str) -> None:
    """Train LightGBM on the rows of a recipe, print its metrics, and write them into the recipe."""
    from satrap.config import load
    from satrap.runtime.formatting import metrics_line
    from satrap.tools.baseline import baseline
    from satrap.tools.init.write import scalar

    metrics = baseline(load(output))
    click.echo(f"LightGBM on the validation rows: {metrics_line(metrics)}")
    with Path(output).open("a", encoding="utf-8") as recipe:
        recipe.write(f"\nabout:\n  baseline: {scalar(metrics)}  # LightGBM on the validation rows\n")


class _Counting:
    """Shows the number of rows read, once a second, on a terminal."""

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
