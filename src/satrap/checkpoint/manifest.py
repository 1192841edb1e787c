"""The manifest: what a checkpoint consists of. It is written last; without it there is no checkpoint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from satrap.checkpoint.storage import FileEntry, Storage
from satrap.errors import CheckpointError

FORMAT = 3
"""Version of the layout; a reader refuses what it does not know."""

MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class Manifest:
    """One checkpoint.

    Args:
        data: name of the folder with its files.
        settings: plain JSON data, see `Checkpoint`.
        files: name -> size, checksums, table and rows.
    """

    data: str
    settings: Mapping[str, Any]
    files: Mapping[str, FileEntry]

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(entry.bytes for entry in self.files.values())

    def rows(self) -> dict[str, int]:
        """Return how many rows each table has."""
        counts: dict[str, int] = {}
        for entry in self.files.values():
            if entry.table:
                counts[entry.table] = counts.get(entry.table, 0) + entry.rows
        return counts


def write_manifest(storage: Storage, manifest: Manifest) -> None:
    """Commit a checkpoint whose files are durable."""
    body = {
        "format": FORMAT,
        "data": manifest.data,
        "settings": manifest.settings,
        "files": {name: entry.to_dict() for name, entry in manifest.files.items()},
    }
    text = json.dumps({**body, "sha256": _digest(body)}, indent=1)
    storage.put(MANIFEST, text.encode())


def read_manifest(storage: Storage) -> Manifest:
    """Read and check a manifest.

    Raises:
        CheckpointError: there is none, it is damaged, or of a format that this version does not know.
    """
    where = storage.path(MANIFEST)
    if not storage.exists(MANIFEST):
        raise CheckpointError(
            "there is no checkpoint here",
            where=where,
            why="a folder without a manifest holds no complete checkpoint",
            fix="give the folder that Trainer.save or satrap train wrote",
        )
    try:
        body = json.loads(storage.read(MANIFEST))
        digest, version = body.pop("sha256", None), body["format"]
        if version != FORMAT and isinstance(version, int):
            raise CheckpointError(
                f"checkpoint format {version} is not known to this version, which reads {FORMAT}",
                where=where,
                fix="use the version of satrap that wrote it",
            )
        if digest != _digest(body):
            raise ValueError("its digest differs")
        files = {name: FileEntry(**entry) for name, entry in body["files"].items()}
        return Manifest(body["data"], body["settings"], files)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            "the manifest is damaged",
            where=where,
            why="what it lists cannot be trusted",
            fix="use an older snapshot: satrap checkpoint repair",
        ) from error


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
