"""How a run begins or goes on, before anything of it trains: its folder, its data, its snapshots."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from satrap.config import Recipe
from satrap.launch import kept_code
from satrap.launch.build import pretrained_rows, without_leftovers
from satrap.launch.datasets import changed_files, measured
from satrap.launch.folder import RunFolder
from satrap.launch.resume import checkpointing, refuse_mixing, reopen, resuming, trained_schema
from satrap.own_warnings import told
from satrap.schema import Schema
from satrap.train import Checkpointing
from satrap.words import counted


def opened(
    recipe: Recipe | None, output: str | None, *, resume: bool, name: str, notice: Callable[[str], None]
) -> tuple[RunFolder, Recipe]:
    """Return the folder of a run, and its recipe; the arguments are those of `satrap.launch.train`."""
    recipe = recipe and without_leftovers(recipe, notice)
    if resume:
        return reopen(recipe, output, name)
    assert recipe is not None
    folder = RunFolder.claim(recipe, output, name=name)
    return folder, kept_code.adopt(recipe, folder.path)


def prepared(
    recipe: Recipe, folder: RunFolder, resume: bool, notice: Callable[[str], None]
) -> tuple[Schema, Checkpointing]:
    """Check what a run needs, and say what it begins with; return its measured schema and its snapshots."""
    for line in _changes(recipe, folder):
        notice(line)
    for line in [] if resume else _pretrained(recipe):
        notice(line)
    notice(_beginning(recipe))
    plan = checkpointing(recipe, folder, notice)
    # The model goes on with the statistics that it began with, whatever has become of the rows.
    with told(notice):
        schema = measured(recipe, recipe.schema(), trained_schema(plan) if resume else None)
    if resume:
        notice(resuming(plan))
    else:
        refuse_mixing(recipe, plan)
    return schema, plan


def _beginning(recipe: Recipe) -> str:
    """Return a line that says what is started."""
    cluster, names = recipe.sections.cluster, []
    if cluster.exchange != "local":
        counts = {"shard": cluster.servers, "loader": cluster.loaders}
        counts |= {"embedding worker": cluster.embedding_workers, "worker": cluster.workers}
        names = [counted(count, kind) for kind, count in counts.items() if count]
    there = f"; shards at {', '.join(cluster.addresses)}" if cluster.addresses else ""
    return f"starting {recipe.sections.training.mode}: {', '.join(names) or 'one process'}{there}"


def _pretrained(recipe: Recipe) -> Iterator[str]:
    """Check the rows that tables start with; yield a line for each table."""
    for name, rows in pretrained_rows(recipe).items():
        own = recipe.sections.tables[name]
        yield f"table {name}: {counted(rows, 'row')} from {own.rows}{', frozen' if own.frozen else ''}"


def _changes(recipe: Recipe, folder: RunFolder) -> Iterator[str]:
    """Yield a line for each file that is not the one the run or its recipe was made for."""
    yield from kept_code.changed(folder.path)
    for file in changed_files(recipe):
        yield f"note: {file} is not the file the figures in the recipe are for (its md5 differs)"
