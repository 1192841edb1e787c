"""The manifest lists the files of a checkpoint. It is written last; without it, no checkpoint exists."""

import hashlib
import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from satrap.checkpoint.files.storage import FileEntry, Storage, instead_of, is_plain, not_plain, unreachable
from satrap.errors import CheckpointError

FORMAT = 8
"""Version of the layout; readers reject any other."""

MANIFEST = "manifest.json"
MANIFEST_BYTES = 1 << 27
"""Largest size of a manifest, enough for 25 TB of rows. Larger manifests are not read."""
MANIFEST_VALUES = 1 << 21
"""Most values in a manifest: a parsed value takes far more memory than its text."""


@dataclass(frozen=True, slots=True)
class ChainLink:
    """The position of a delta in its chain."""

    name: str  # of the delta's folder, so that a copy elsewhere is not part of the chain
    number: int  # position after the full snapshot, from 1
    previous: str  # name of the previous snapshot's folder, in the same parent folder
    previous_id: str  # `Manifest.id` of the previous snapshot


@dataclass(frozen=True, slots=True)
class Manifest:
    """One checkpoint."""

    data: str  # name of the folder with its files
    settings: Mapping[str, Any]  # plain JSON data, see `Checkpoint`
    files: Mapping[str, FileEntry]
    delta: ChainLink | None = (
        None  # set: the files hold only the rows that changed since the previous snapshot
    )
    # Identifies this snapshot to deltas that follow it; stays the same when the files are rewritten.
    id: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(entry.bytes for entry in self.files.values())

    def rows(self) -> dict[str, int]:
        """Return the number of rows of each table in the files."""
        counts: dict[str, int] = {}
        for entry in self.files.values():
            if entry.table:
                counts[entry.table] = counts.get(entry.table, 0) + entry.rows
        return counts


def write_manifest(storage: Storage, manifest: Manifest, *, new: bool = False) -> None:
    """Commit a checkpoint whose files are durable; with `new`, raise FileExistsError if one exists.

    Raises CheckpointError if a file has an invalid name, or there are too many files.
    """
    _check_names(manifest, storage.path(MANIFEST))
    body = {
        "format": FORMAT,
        "id": manifest.id,
        "delta": None if manifest.delta is None else asdict(manifest.delta),
        "data": manifest.data,
        "settings": manifest.settings,
        "files": {name: entry.to_dict() for name, entry in manifest.files.items()},
    }
    text = json.dumps({**body, "sha256": _digest(body)}, indent=1).encode()
    if len(text) > MANIFEST_BYTES or _values(text) > MANIFEST_VALUES:
        raise CheckpointError("the checkpoint has too many files or too large settings", where=storage.url)
    storage.put(MANIFEST, text, new=new)


def read_manifest(storage: Storage) -> Manifest:
    """Read and check a manifest; raise if it is missing, damaged, or of an unknown format."""
    where = storage.path(MANIFEST)
    try:
        text = storage.read_start(MANIFEST, MANIFEST_BYTES + 1) if storage.exists(MANIFEST) else None
    except OSError as error:
        raise unreachable(where, error) from error
    if text is None:
        raise CheckpointError(
            "the folder has no checkpoint",
            where=where,
            why="a folder without a manifest is not a complete checkpoint",
            fix="give a folder written by Trainer.save or satrap train",
        )
    try:
        manifest = _parsed(text, where)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            "the manifest is damaged",
            where=where,
            why="the files that it lists cannot be trusted",
            fix=instead_of(where),
        ) from error
    _check_names(manifest, where)
    return manifest


def _parsed(text: bytes, where: str) -> Manifest:
    """Return the manifest in a text; any error but CheckpointError means that the text is damaged."""
    if len(text) > MANIFEST_BYTES or _values(text) > MANIFEST_VALUES:
        raise ValueError("the manifest is too large")
    body = json.loads(text)
    digest, version = body.pop("sha256", None), body["format"]
    if type(version) is not int:
        raise ValueError("the format is not a number")
    if version != FORMAT:
        raise CheckpointError(
            f"this version of satrap cannot read checkpoint format {version}, only format {FORMAT}",
            where=where,
            fix="use the version of satrap that wrote the checkpoint",
        )
    if digest != _digest(body):
        raise ValueError("the digest differs")
    settings, id_, link = body["settings"], body["id"], body["delta"]
    delta = None if link is None else ChainLink(**link)
    if delta is not None and (type(delta.number) is not int or not 0 < delta.number < 2**63):
        raise ValueError("the number of the delta is invalid")
    if not isinstance(settings, dict) or not isinstance(id_, str):
        raise ValueError("settings or id have a wrong type")
    files = {name: FileEntry.from_dict(entry) for name, entry in body["files"].items()}
    return Manifest(body["data"], settings, files, delta, id_)


def _values(text: bytes) -> int:
    """Return the approximate number of values in a JSON text, without parsing it."""
    return sum(text.count(sign) for sign in (b",", b"[", b"{"))


def _check_names(manifest: Manifest, where: str) -> None:
    """Raise CheckpointError unless all names in a manifest are plain, so that none leads elsewhere."""
    names = [manifest.data, *manifest.files, manifest.settings.get("best") or "none"]
    if manifest.delta is not None:
        names += [manifest.delta.name, manifest.delta.previous]
    for name in names:
        if not is_plain(name):
            raise not_plain(name, where)


@contextmanager
def reading_settings(where: str) -> Iterator[None]:
    """Turn errors about missing or invalid settings inside the block into CheckpointError."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise CheckpointError(
            f"the settings of the checkpoint cannot be used: {type(error).__name__}: {error}",
            where=where,
            why="without valid settings the saved state cannot be interpreted",
            fix="use another checkpoint",
        ) from error


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
