"""Exports and imports rows and weights of a checkpoint: Parquet and safetensors."""

import itertools
import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from satrap.checkpoint.chain import Chain, open_chain
from satrap.checkpoint.dense import flat_optimizer
from satrap.checkpoint.files.storage import Storage
from satrap.checkpoint.files.tensor_stream import streamed
from satrap.checkpoint.manifest import read_manifest, reading_settings
from satrap.checkpoint.rewrite import compact, forget, rewrite
from satrap.checkpoint.saved_dense import MODEL, OPTIMIZER, SavedDense
from satrap.checkpoint.series import find
from satrap.data.encode.hashing import hash_ids
from satrap.data.formats.row_files import Floats, RowFileSpec, read_rows
from satrap.errors import CheckpointError, ConfigError, DataError
from satrap.launch.folder.run_folder import RunFolder
from satrap.optim import Optimizer, from_dict
from satrap.rpc.server.journal import Journal
from satrap.schema import Table
from satrap.store import RowChunk, Shard, TableSettings
from satrap.store.row_spec import plan


def export(url: str, output: str | Path, *, state: bool = False) -> list[Path]:
    """Write a checkpoint as files that other programs can read, in bounded memory; return the files.

    The output, a new or empty folder, gets `<table>.parquet` for each table, with columns id (uint64) and
    weights (list of float), and the network's `model.safetensors`; with `state`, also the column state and
    `optimizer.safetensors`.
    """
    folder = Path(output)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError("the output folder is not empty", where=str(folder), fix="choose another --output")
    chain = open_chain(url)
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    saved = SavedDense(*chain.members[-1])
    dense = {MODEL: (saved.weights, dict[str, str]())}
    if state:
        dense[OPTIMIZER] = flat_optimizer(saved.optimizer)
    for name, (tensors, metadata) in dense.items():
        with (folder / name).open("wb") as file:
            file.writelines(streamed(tensors, metadata))
        files.append(folder / name)
    for number, table in enumerate(chain.tables):
        plain = all(c.isalnum() or c in "-_." for c in table) and table[0] != "."
        path = folder / f"{table if plain else f'table-{number:03d}'}.parquet"
        files.append(_export_table(chain, table, path, state))
    return files


def _export_table(chain: Chain, table: str, path: Path, state: bool) -> Path:
    writer = None
    try:
        for _, chunk in chain.chunks(table):
            columns = {"id": pa.array(chunk.ids), "weights": _lists(chunk.weights)}
            if state and chunk.state.shape[1]:
                columns["state"] = _lists(chunk.state)
            made = pa.table(columns).replace_schema_metadata({"table": table})
            writer = writer or pq.ParquetWriter(path, made.schema)
            writer.write_table(made)
    finally:
        if writer is not None:
            writer.close()
    return path


def _lists(values: Floats) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])


def import_rows(
    url: str, table: str, file: str | Path, *, tensor: str | None = None, raw: bool = False
) -> int:
    """Copy rows from a file into a table of a checkpoint, in one step; return their number.

    The new rows replace existing rows. Rows without a state in the file get the optimizer's initial state. A
    file that cannot be read or does not fit raises DataError. For formats, `tensor` and `raw` see
    `read_rows`.
    """
    chain = open_chain(url)
    salt, tables = _described(chain, table)
    plans = {own.dim: plan(_optimizer(own), own.dim) for own in tables}
    requirements = RowFileSpec(table, {dim: own.width for dim, own in plans.items()}, salt)
    parts = list(read_rows(Path(file), requirements, tensor=tensor, raw=raw))
    ids, weights = (np.concatenate([part[column] for part in parts]) for column in (0, 1))
    [own] = [own for own in tables if own.dim == weights.shape[1]]
    states = [part.state for part in parts if part.state is not None]
    state = np.concatenate(states) if states else plans[own.dim].initial_states(len(ids))
    fresh = RowChunk(table, ids, weights, state)
    compact(url)  # a delta does not hold a whole table
    with closing(Shard([own])) as shard:

        def merged(chunks: Iterator[RowChunk]) -> Iterator[RowChunk]:
            for chunk in itertools.chain(chunks, [fresh]):
                shard.load(table, chunk)
            return shard.export(table)

        rewrite(url, table, merged)
    return len(ids)


def _optimizer(table: Table) -> Optimizer:
    assert table.optimizer is not None
    return table.optimizer


def _described(chain: Chain, table: str) -> tuple[int, list[Table]]:
    """Return the salt of the ids in a checkpoint, and its possible definitions of a table, one per width."""
    storage, manifest = chain.members[-1]
    with reading_settings(storage.url):
        schema = manifest.settings.get("schema", {})
        salt, optimizer = int(schema.get("salt", 0)), from_dict(manifest.settings["embedding_optimizer"])
        named = manifest.settings.get("tables", {}).get(table)
        settings = TableSettings() if named is None else TableSettings.of(named)
        features: Mapping[str, Any] = schema.get("features", {})
        relevant = (f for name, f in features.items() if "dim" in f and table in (name, f.get("table")))
        dims = [int(feature["dim"]) for feature in relevant]
    if table in chain.tables:
        dims = [int(next(chain.chunks(table))[1].weights.shape[1])]
    if not dims:
        raise DataError(
            f"the checkpoint has no table {table!r}", fix=f"tables: {', '.join(chain.tables) or 'none'}"
        )
    chosen = None if settings.frozen else settings.optimizer or optimizer
    return salt, [Table(table, dim=dim, optimizer=chosen, frozen=settings.frozen) for dim in set(dims)]


def forget_everywhere(url: str, table: str, value: str, *, hashed: bool = False) -> dict[str, int]:
    """Delete a row from all checkpoints in a folder, and the journals of a dead run.

    `value` is the id as in the data; with `hashed`, the row's id itself, a 64-bit number. Returns name of the
    checkpoint -> rows removed. If a checkpoint is damaged or cannot be written, earlier ones are already
    changed. A delta without its base snapshots, and an active run, are rejected.
    """
    removed, places = {}, find(url)
    if url.rstrip("/") in places.values() and read_manifest(Storage(url)).delta is not None:
        raise ConfigError(
            "this is a delta: the row would remain in the snapshots that the delta builds on",
            where=url,
            fix="give the folder that contains all of these snapshots",
        )
    remove_journals(url)
    for name, place in places.items():
        if table not in open_chain(place).tables:
            removed[name] = 0
            continue
        salt = read_manifest(Storage(place)).settings.get("schema", {}).get("salt", 0)
        removed[name] = forget(place, table, _number(value) if hashed else int(hash_ids([value], salt)[0]))
    tables = list(dict.fromkeys(name for place in places.values() for name in open_chain(place).tables))
    if not any(removed.values()) and table not in tables:
        names = ", ".join(tables) or "none"
        raise ConfigError(f"unknown table {table!r}", where=url, fix=f"tables: {names}")
    return removed


def remove_journals(url: str) -> None:
    """Remove the journals of a dead run's shards, because no run resumes from them."""
    folder = RunFolder(Path(url)).journals
    for path in sorted(folder.glob("*")) if folder.is_dir() else ():
        with suppress(CheckpointError):  # a damaged journal is removed below
            Journal(path).close()  # raises while a shard uses it
    shutil.rmtree(folder, ignore_errors=True)


def _number(value: str) -> int:
    if value.isdigit() and int(value) < 2**64:
        return int(value)
    raise ConfigError(f"{value!r} is not an id: give a whole number below 2**64")
