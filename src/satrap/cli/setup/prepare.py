"""`satrap prepare`."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

import click

from satrap.cli.options import debug_option, set_option
from satrap.runtime.formatting import counted

if TYPE_CHECKING:
    from satrap.tools.prepare import PrepareProgress


@click.command()
@click.argument("recipe")
@click.option("--output", required=True, metavar="DIR", help="Output folder for the files and their recipe.")
@click.option(
    "--files",
    type=click.IntRange(1),
    metavar="N",
    help="Approximate number of files; default one per 256 MiB.",
)
@click.option(
    "--processes",
    type=click.IntRange(1),
    metavar="P",
    help="Number of parts written in parallel; default the number of cores of this machine or of the Ray "
    "cluster.",
)
@click.option(
    "--ray",
    metavar="ADDRESS",
    help="Write the parts on the nodes of a Ray cluster: HOST:PORT, or auto for the cluster running on this "
    "machine.",
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
    """Write the rows of RECIPE as Parquet files of ids and numbers, for faster reading.

    Next: satrap train DIR/recipe.yaml, which gives the same result. After Ctrl-C or a kill, repeat the
        command to resume; the files are the same to the byte.
    """
    from satrap.config import load

    loaded = load(recipe, overrides)
    from satrap.tools.prepare import prepare as write

    if processes is None and ray is None:
        processes = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        with _Line() as line:
            done = write(
                loaded, output, files=files, processes=processes, ray=ray, progress=line, notice=line.say
            )
    except KeyboardInterrupt:
        click.echo("interrupted; repeat the command to resume", err=True)
        sys.exit(1)
    click.echo(
        f"{output}: {done.rows:,} rows in {counted(done.files, 'file')}, {done.after / 1e6:,.1f} MB of "
        f"{done.before / 1e6:,.1f} MB"
    )
    click.echo(f"next:\n  satrap train {done.recipe}")


class _Line:
    """Shows on a terminal the rows written, the bytes read and the speed."""

    def __init__(self) -> None:
        self._start: tuple[float, int] | None = None
        self._terminal = sys.stderr.isatty()

    def __call__(self, now: PrepareProgress) -> None:
        if not self._terminal:
            return
        if self._start is None:  # the speed excludes bytes read by an earlier call
            self._start = time.monotonic(), now.read
        text = f"{now.rows:,} rows, {now.read / 1e9:,.2f} GB read"
        seconds = time.monotonic() - self._start[0]
        if seconds > 0:
            text += f", {(now.read - self._start[1]) / seconds / 1e6:,.0f} MB/s"
        if now.total:
            text = f"{min(1.0, now.read / now.total):4.0%}  {text}"
        click.echo(f"\r{text}\x1b[K", err=True, nl=False)

    def say(self, text: str) -> None:
        """Show a permanent line."""
        self.__exit__()
        click.echo(text, err=True)

    def __enter__(self) -> _Line:
        return self

    def __exit__(self, *_: object) -> None:
        if self._terminal:
            click.echo("\r\x1b[K", err=True, nl=False)
