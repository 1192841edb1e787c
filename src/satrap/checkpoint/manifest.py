"""The manifest: what a checkpoint consists of. It is written last; without it there is no checkpoint."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from satrap.checkpoint.storage import FileEntry, Storage, unreachable
from satrap.errors import CheckpointError

FORMAT = 4
"""Version of the layout; a reader refuses what it does not know."""

MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class Link:
    """What a delta snapshot follows.

    Args:
        name: of its own folder: a copy elsewhere is not part of the chain.
        number: its position after the full snapshot, from 1.
        previous: name of the folder, beside its own, of the snapshot before.
        previous_id: `Manifest.id` of that.
    """

    name: str
    number: int
    previous: str
    previous_id: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """One checkpoint.

    Args:
        data: name of the folder with its files.
        settings: plain JSON data, see `Checkpoint`.
        files: name -> size, checksums, table and rows.
        delta: None: the files hold all rows; else those that changed since another snapshot.
        id: what a delta knows this snapshot by; stays when the files are rewritten.
    """

    data: str
    settings: Mapping[str, Any]
    files: Mapping[str, FileEntry]
    delta: Link | None = None
    id: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(entry.bytes for entry in self.files.values())

    def rows(self) -> dict[str, int]:
        """Return how many rows of each table the files hold."""
        counts: dict[str, int] = {}
        for entry in self.files.values():
            if entry.table:
                counts[entry.table] = counts.get(entry.table, 0) + entry.rows
        return counts


def write_manifest(storage: Storage, manifest: Manifest, *, new: bool = False) -> None:
    """Commit a checkpoint whose files are durable; `new`: where there must be none."""
    body = {
        "format": FORMAT,
        "id": manifest.id,
        "delta": None if manifest.delta is None else asdict(manifest.delta),
        "data": manifest.data,
        "settings": manifest.settings,
        "files": {name: entry.to_dict() for name, entry in manifest.files.items()},
    }
    text = json.dumps({**body, "sha256": _digest(body)}, indent=1)
    storage.put(MANIFEST, text.encode(), new=new)


def read_manifest(storage: Storage) -> Manifest:
    """Read and check a manifest.

    Raises:
        CheckpointError: there is none, it is damaged, or of a format that this version does not know.
    """
    where = storage.path(MANIFEST)
    try:
        text = storage.read(MANIFEST) if storage.exists(MANIFEST) else None
    except OSError as error:
        raise unreachable(where, error) from error
    if text is None:
        raise CheckpointError(
            "there is no checkpoint here",
            where=where,
            why="a folder without a manifest holds no complete checkpoint",
            fix="give the folder that Trainer.save or satrap train wrote",
        )
    try:
        body = json.loads(text)
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
        delta = None if body["delta"] is None else Link(**body["delta"])
        return Manifest(body["data"], body["settings"], files, delta, body["id"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            "the manifest is damaged",
            where=where,
            why="what it lists cannot be trusted",
            fix="use an older snapshot: satrap checkpoint repair",
        ) from error


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
