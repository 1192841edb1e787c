"""`satrap checkpoint`: commands for the files of a saved run."""

import json
import shlex
from typing import Any

import click

from satrap.cli.options import debug_option, json_option
from satrap.errors import CheckpointError
from satrap.runtime.formatting import counted

folder = click.argument("folder", metavar="DIR")


@click.group()
def checkpoint() -> None:
    """Inspect, verify, repair, compact, reshard, export and edit checkpoints.

    DIR is the path or URL of a run folder, of a folder of snapshots, or of one checkpoint.
    """


@checkpoint.command()
@folder
@json_option
@debug_option
def inspect(folder: str, as_json: bool) -> None:
    """Show step, size and rows per table of each checkpoint in DIR. Reads manifests only."""
    from satrap.checkpoint.files.storage import Storage
    from satrap.checkpoint.manifest import read_manifest
    from satrap.checkpoint.series import find

    shown: dict[str, dict[str, Any]] = {}
    for name, place in find(folder).items():
        manifest = read_manifest(Storage(place))
        shown[name] = {
            "url": place,
            "step": step if type(step := manifest.settings.get("steps")) is int else None,
            "resumable": "run" in manifest.settings,
            "bytes": manifest.bytes,
            "files": {file: entry.bytes for file, entry in manifest.files.items()},
            "rows": manifest.rows(),
            "delta": None
            if manifest.delta is None
            else {"number": manifest.delta.number, "follows": manifest.delta.previous},
        }
    if as_json:
        click.echo(json.dumps(shown, indent=2))
        return
    for name, checkpoint in shown.items():
        kind = "resumable" if checkpoint["resumable"] else "weights only"
        step = "no step" if checkpoint["step"] is None else f"step {checkpoint['step']:,}"
        click.echo(f"{name}: {step}, {checkpoint['bytes']:,} bytes, {kind}")
        if checkpoint["delta"]:
            click.echo(
                f"  delta {checkpoint['delta']['number']}, changes since {checkpoint['delta']['follows']}"
            )
        for table, rows in checkpoint["rows"].items():
            click.echo(f"  {table:<24} {rows:>12,} rows{' changed' if checkpoint['delta'] else ''}")


@checkpoint.command()
@folder
@json_option
@debug_option
def verify(folder: str, as_json: bool) -> None:
    """Read every byte in DIR and compare checksums. The exit code is 1 if a checkpoint is damaged."""
    from satrap.checkpoint import verify as verify_one
    from satrap.checkpoint.series import find

    damage: dict[str, str | None] = {}
    known: set[str] = set()
    for name, place in find(folder).items():
        try:
            verify_one(place, known=known)
            damage[name] = None
        except CheckpointError as error:
            damage[name] = f"{error.what}: {error.where}"
    if as_json:
        click.echo(json.dumps(damage, indent=2))
    else:
        for name, problem in damage.items():
            click.echo(f"{name}: {problem or 'good'}")
    bad = [name for name, problem in damage.items() if problem]
    if bad:
        raise CheckpointError(
            f"{len(bad)} of {len(damage)} checkpoints are damaged: {', '.join(bad)}",
            where=folder,
            fix="; ".join(dict.fromkeys(_advice(name, folder) for name in bad)),
        )


def _advice(name: str, folder: str) -> str:
    if name.startswith(("step-", "best-")):
        return f"satrap checkpoint repair {shlex.quote(folder)}"
    return f"restore a backup of {name}, or train again"


@checkpoint.command()
@folder
@debug_option
def repair(folder: str) -> None:
    """Remove damaged snapshots until the newest one is good."""
    from satrap.checkpoint.series import series_in

    good, removed = series_in(folder).repair()
    if good is None:
        raise CheckpointError(
            "all snapshots are damaged; nothing was removed" if removed else "the folder has no snapshots",
            where=folder,
            fix="restore a backup, or train again: satrap train RECIPE",
        )
    for step, error in removed.items():
        click.echo(f"removed step {step:,}: {error.what}: {error.where}")
    click.echo(f"the newest snapshot is of step {good:,} and intact")


@checkpoint.command()
@folder
@click.option("--prune", is_flag=True, help="Then delete all older snapshots.")
@debug_option
def compact(folder: str, prune: bool) -> None:
    """Turn the newest snapshot into a full one if it is a delta."""
    from satrap.checkpoint.rewrite import compact as compact_one
    from satrap.checkpoint.series import series_in

    series = series_in(folder)
    step = series.latest()
    if step is None:
        raise CheckpointError("the folder has no snapshots", where=folder, fix="give the folder of a run")
    rows = compact_one(series.place(step)).rows()
    if prune:
        series.keep = 1
        series.prune()
    for table, count in rows.items():
        click.echo(f"  {table:<24} {count:>12,} rows")
    click.echo(f"the snapshot of step {step:,} is full; kept: {counted(len(series.steps()), 'snapshot')}")


@checkpoint.command()
@folder
@click.option("--output", required=True, metavar="DIR", help="New folder.")
@click.option("--state", is_flag=True, help="Also write the optimizer state.")
@debug_option
def export(folder: str, output: str, state: bool) -> None:
    """Write tables as Parquet (id, weights) and the network as safetensors.

    For a run folder: of the trained model or, without one, of the newest snapshot.
    """
    from satrap.checkpoint.series import newest
    from satrap.export import row_files

    for file in row_files.export(newest(folder), output, state=state):
        click.echo(str(file))


@checkpoint.command()
@folder
@click.option("--shards", required=True, type=click.IntRange(1), help="Number of shards.")
@debug_option
def reshard(folder: str, shards: int) -> None:
    """Rewrite every checkpoint in DIR for another number of shards.

    Resuming does not need this: any number of shards can read any checkpoint.
    """
    from satrap.export.reshard import reshard_everywhere

    for name, rows in reshard_everywhere(folder, shards).items():
        click.echo(f"{name}: {counted(rows, 'row')} for {counted(shards, 'shard')}")


@checkpoint.command("import")
@folder
@click.argument("table")
@click.argument("file")
@click.option(
    "--tensor", metavar="NAME", help="Name of the matrix in a safetensors file; default: the only matrix."
)
@click.option(
    "--raw", is_flag=True, help="Hash the ids of a Parquet file, because they are values of the data."
)
@debug_option
def import_(folder: str, table: str, file: str, tensor: str | None, raw: bool) -> None:
    """Copy rows of FILE (Parquet, NumPy, safetensors of an nn.Embedding) into TABLE of a checkpoint.

    Row n of an embedding matrix becomes the row of value n in the data.
    """
    from satrap.checkpoint.series import newest
    from satrap.export import row_files

    place = newest(folder)
    count = row_files.import_rows(place, table, file, tensor=tensor, raw=raw)
    click.echo(f"{counted(count, 'row')} of table {table} written to {place}")


@checkpoint.command()
@folder
@click.argument("table")
@click.argument("id_", metavar="ID")
@click.option("--hashed", is_flag=True, help="ID is the row's 64-bit id instead of a value in the data.")
@debug_option
def forget(folder: str, table: str, id_: str, hashed: bool) -> None:
    """Delete the row of ID from TABLE in every checkpoint of DIR."""
    from satrap.export import row_files

    for name, count in row_files.forget_everywhere(folder, table, id_, hashed=hashed).items():
        click.echo(f"{name}: {'removed' if count else 'had no such row'}")
