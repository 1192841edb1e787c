"""`satrap prepare`."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

import click

from satrap.cli.options import debug_option, set_option

if TYPE_CHECKING:
    from satrap.prepare import Progress


@click.command()
@click.argument("recipe")
@click.option("--output", required=True, metavar="DIR", help="Folder of the files and their recipe.")
@click.option(
    "--files",
    type=click.IntRange(1),
    metavar="N",
    help="About how many files to write; default one for each 256 MiB.",
)
@click.option(
    "--processes",
    type=click.IntRange(1),
    metavar="P",
    help="Parts written at a time; default the cores, of this machine or of the Ray cluster.",
)
@click.option(
    "--ray",
    metavar="ADDRESS",
    help="Write the parts on the nodes of a Ray cluster: HOST:PORT, or auto for that of this machine.",
)
@set_option
@debug_option
def prepare(
    recipe: str,
    output: str,
    files: int | None,
    processes: int | None,
    ray: str | None,
    overrides: tuple[str, ...],
) -> None:
    """Write the rows of RECIPE as Parquet files of ids and numbers, which are read faster.

    Then: satrap train DIR/recipe.yaml trains to the same result. After Ctrl-C or a kill, the same command
    goes on, and the files get the same bytes.
    """
    from satrap.config import load

    loaded = load(recipe, overrides)
    from satrap.prepare import prepare as write

    if processes is None and ray is None:
        processes = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        with _Line() as line:
            done = write(
                loaded, output, files=files, processes=processes, ray=ray, progress=line, notice=line.say
            )
    except KeyboardInterrupt:
        click.echo("interrupted; the same command goes on", err=True)
        sys.exit(1)
    click.echo(
        f"{output}: {done.rows:,} rows in {done.files} files, "
        f"{done.after / 1e6:,.1f} MB of {done.before / 1e6:,.1f} MB"
    )
    click.echo(f"next:\n  satrap train {done.recipe}")


class _Line:
    """Shows on a terminal how many rows are written, how much is read and how fast."""

    def __init__(self) -> None:
        self._start: tuple[float, int] | None = None
        self._terminal = sys.stderr.isatty()

    def __call__(self, now: Progress) -> None:
        if not self._terminal:
            return
        if self._start is None:  # what an earlier call has read says nothing of the speed
            self._start = time.monotonic(), now.read
        text = f"{now.rows:,} rows, {now.read / 1e9:,.2f} GB read"
        seconds = time.monotonic() - self._start[0]
        if seconds > 0:
            text += f", {(now.read - self._start[1]) / seconds / 1e6:,.0f} MB/s"
        if now.total:
            text = f"{min(1.0, now.read / now.total):4.0%}  {text}"
        click.echo(f"\r{text}\x1b[K", err=True, nl=False)

    def say(self, text: str) -> None:
        """Show a line that stays."""
        self.__exit__()
        click.echo(text, err=True)

    def __enter__(self) -> _Line:
        return self

    def __exit__(self, *_: object) -> None:
        if self._terminal:
            click.echo("\r\x1b[K", err=True, nl=False)
