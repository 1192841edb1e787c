"""Start or resume of a run before training: run folder, data and snapshots."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from satrap.config import Recipe
from satrap.launch import code_snapshot
from satrap.launch.build import store_of, tables_for
from satrap.launch.datasets import changed_files, measured
from satrap.launch.folder.resume import (
    checkpointing,
    refuse_mixing,
    reopen,
    resuming,
    starting_schema,
    trained_schema,
)
from satrap.launch.folder.run_folder import RunFolder
from satrap.launch.network import make_model, without_leftovers
from satrap.runtime.formatting import counted
from satrap.runtime.satrap_warnings import told
from satrap.schema import Schema
from satrap.train import Checkpointing
from satrap.train.state.initial_rows import check_rows


def opened(
    recipe: Recipe | None, output: str | None, *, resume: bool, name: str, notice: Callable[[str], None]
) -> tuple[RunFolder, Recipe]:
    """Return the folder and recipe of a run; for the arguments see `satrap.launch.train`."""
    recipe = recipe and without_leftovers(recipe, notice)
    if resume:
        return reopen(recipe, output, name)
    assert recipe is not None
    folder = RunFolder.claim(recipe, output, name=name)
    return folder, code_snapshot.adopt(recipe, folder.path)


def prepared(
    recipe: Recipe, folder: RunFolder, resume: bool, notice: Callable[[str], None]
) -> tuple[Schema, Checkpointing]:
    """Check the inputs of a run and print its start; return its measured schema and its snapshots."""
    for line in _changes(recipe, folder):
        notice(line)
    for line in [] if resume else _pretrained(recipe):
        notice(line)
    notice(_beginning(recipe))
    plan = checkpointing(recipe, folder, notice)
    # The model keeps its initial statistics, even if the rows have changed.
    known = trained_schema(plan) if resume else starting_schema(recipe)
    with told(notice):
        schema = measured(recipe, recipe.schema(), known)
    if resume:
        notice(resuming(plan))
    else:
        refuse_mixing(recipe, plan)
    return schema, plan


def _beginning(recipe: Recipe) -> str:
    """Return a line with the processes of the run."""
    cluster, names = recipe.sections.cluster, []
    if cluster.exchange != "local":
        counts = {"shard": cluster.servers, "loader": cluster.loaders}
        counts |= {"embedding worker": cluster.embedding_workers, "worker": cluster.workers}
        names = [counted(count, kind) for kind, count in counts.items() if count]
    running = f"; shards at {', '.join(cluster.addresses)}" if cluster.addresses else ""
    return f"starting {recipe.sections.training.mode}: {', '.join(names) or 'one process'}{running}"


def _pretrained(recipe: Recipe) -> Iterator[str]:
    """Check the initial rows of tables; yield a line for each table."""
    for name, rows in _pretrained_rows(recipe).items():
        table = recipe.sections.tables[name]
        yield f"table {name}: {counted(rows, 'row')} from {table.rows}{', frozen' if table.frozen else ''}"


def _changes(recipe: Recipe, folder: RunFolder) -> Iterator[str]:
    """Yield a line for each file that differs from the file the run or its recipe was made with."""
    yield from code_snapshot.changed(folder.path)
    for file in changed_files(recipe):
        yield f"note: {file} differs from the file of the figures in the recipe (md5)"


def _pretrained_rows(recipe: Recipe) -> dict[str, int]:
    """Return table -> number of rows in its file of initial rows; for errors see `check_rows`."""
    if all(table.rows is None for table in recipe.sections.tables.values()):
        return {}
    schema = recipe.schema()
    return check_rows(schema, tables_for(recipe, schema, make_model(recipe, schema)), store_of(recipe))
