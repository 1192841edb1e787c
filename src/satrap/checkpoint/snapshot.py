"""Write and read one checkpoint: data first, manifest last."""

from __future__ import annotations

import hashlib
import itertools
import json
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from torch import Tensor

from satrap.checkpoint.dense import pack_optimizer, pack_tensors, unpack_optimizer, unpack_tensors
from satrap.checkpoint.rows import read_rows, write_rows
from satrap.checkpoint.storage import Storage
from satrap.errors import CheckpointError
from satrap.store import Chunk

FORMAT = 1
"""Version of the layout; a reader refuses what it does not know."""

MANIFEST = "manifest.json"


@dataclass(slots=True)
class Checkpoint:
    """A trained state.

    Args:
        settings: plain JSON data: schema, model, optimizer, counters.
        model: name -> tensor, the network's `state_dict`.
        optimizer: `state_dict` of the dense optimizer, or empty.
        chunks: (table, rows) in canonical order; may be read only once.
    """

    settings: dict[str, Any]
    model: dict[str, Tensor]
    optimizer: dict[str, Any]
    chunks: Iterable[tuple[str, Chunk]]


def write_checkpoint(url: str, checkpoint: Checkpoint, **options: Any) -> None:
    """Write a checkpoint; an older one at the same place is replaced in one step.

    Args:
        url: folder or fsspec URL.
        checkpoint: what to write; its chunks are consumed.
        options: passed to the file system.

    Raises:
        CheckpointError: it cannot be written; an older checkpoint is untouched.
    """
    storage = Storage(url, **options)
    folder = f"data-{secrets.token_hex(4)}"
    try:
        files = _write_data(storage, folder, checkpoint)
        storage.sync_folder(folder)
        body = {"format": FORMAT, "data": folder, "settings": checkpoint.settings, "files": files}
        storage.replace(MANIFEST, json.dumps(body, indent=1).encode())
        for other in storage.folders():
            if other.startswith("data-") and other != folder:
                storage.remove(other)
    except OSError as error:
        raise CheckpointError(
            f"the checkpoint could not be written: {error}",
            where=url,
            why="an older checkpoint there, if any, is untouched",
            fix="free the disk or choose another place",
        ) from error


def _write_data(storage: Storage, folder: str, checkpoint: Checkpoint) -> dict[str, dict[str, Any]]:
    files: dict[str, dict[str, Any]] = {}
    parts = {
        "model.safetensors": pack_tensors(checkpoint.model),
        "optimizer.safetensors": pack_optimizer(checkpoint.optimizer),
    }
    for name, data in parts.items():
        with storage.writer(f"{folder}/{name}") as writer:
            writer.write(data)
        files[name] = {"bytes": writer.size, "blake2b": writer.hexdigest()}
    tables = itertools.groupby(checkpoint.chunks, key=lambda pair: pair[0])
    for number, (table, pairs) in enumerate(tables):
        name = f"table-{number:03d}.arrow"
        chunks = (chunk for _, chunk in pairs)
        with storage.writer(f"{folder}/{name}") as writer:
            rows = write_rows(writer, next(chunks), chunks)
        files[name] = {
            "bytes": writer.size,
            "blake2b": writer.hexdigest(),
            "table": table,
            "rows": rows,
        }
    return files


def read_checkpoint(url: str, **options: Any) -> Checkpoint:
    """Open a checkpoint and verify the digest of every file.

    Raises:
        CheckpointError: no checkpoint there, an unknown format, or damage; it names the file.
    """
    storage = Storage(url, **options)
    manifest = _manifest(storage)
    folder, files = manifest["data"], manifest["files"]
    for name, expected in files.items():
        _verify(storage, f"{folder}/{name}", expected)
    return Checkpoint(
        settings=manifest["settings"],
        model=unpack_tensors(storage.read(f"{folder}/model.safetensors")),
        optimizer=unpack_optimizer(storage.read(f"{folder}/optimizer.safetensors")),
        chunks=_chunks(storage, folder, files),
    )


def _manifest(storage: Storage) -> dict[str, Any]:
    if not storage.exists(MANIFEST):
        raise CheckpointError(
            "there is no checkpoint here",
            where=storage.path(MANIFEST),
            why="a folder without a manifest holds no complete checkpoint",
            fix="give the folder that Trainer.save or satrap train wrote",
        )
    try:
        manifest: dict[str, Any] = json.loads(storage.read(MANIFEST))
        version = manifest["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError("the manifest is damaged", where=storage.path(MANIFEST)) from error
    if version != FORMAT:
        raise CheckpointError(
            f"checkpoint format {version} is not known to this version, which reads {FORMAT}",
            where=storage.path(MANIFEST),
            fix="use the version of satrap that wrote it",
        )
    return manifest


def _verify(storage: Storage, name: str, expected: dict[str, Any]) -> None:
    digest, size = hashlib.blake2b(digest_size=16), 0
    try:
        with storage.open(name) as file:
            while block := file.read(1 << 20):
                digest.update(block)
                size += len(block)
    except FileNotFoundError as error:
        raise CheckpointError("a file of the checkpoint is missing", where=storage.path(name)) from error
    if size != expected["bytes"] or digest.hexdigest() != expected["blake2b"]:
        raise CheckpointError(
            f"a file of the checkpoint is damaged: {size} bytes where {expected['bytes']} were written, "
            "or other content",
            where=storage.path(name),
            why="its rows cannot be trusted",
            fix="use another copy or an older checkpoint",
        )


def _chunks(storage: Storage, folder: str, files: dict[str, dict[str, Any]]) -> Iterator[tuple[str, Chunk]]:
    for name, entry in files.items():
        if "table" in entry:
            with storage.open(f"{folder}/{name}") as file:
                for chunk in read_rows(pa.PythonFile(file, mode="r")):
                    yield entry["table"], chunk
