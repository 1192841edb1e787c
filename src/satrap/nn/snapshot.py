"""Saved rows of a loop of the user's own, and references to them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from satrap.checkpoint import Checkpoint, write_checkpoint
from satrap.checkpoint.files.storage import Storage
from satrap.checkpoint.manifest import read_manifest, reading_settings
from satrap.errors import CheckpointError, ConfigError
from satrap.exchange import Exchange
from satrap.exchange.states import COUNTS


@dataclass(frozen=True, slots=True)
class Reference:
    """Names the snapshot of rows; without a URL, the rows of a new store.

    Args:
        url: folder or fsspec URL.
        id: of the snapshot's manifest.
        steps: steps that trained rows until then.
    """

    url: str = ""
    id: str = ""
    steps: int = 0

    def tensor(self) -> Tensor:
        """Return the reference as JSON in uint8[n]: files of safetensors hold only tensors."""
        return torch.tensor(list(json.dumps(asdict(self)).encode()), dtype=torch.uint8)

    @classmethod
    def of(cls, state: Any) -> Reference:
        """Return the reference in the result of `tensor`; raise CheckpointError for anything else."""
        if isinstance(state, Tensor) and state.dtype == torch.uint8:
            with suppress(ValueError):
                match json.loads(bytes(state.tolist())):
                    case {"url": str(url), "id": str(id_), "steps": int(steps)}:
                        return cls(url, id_, steps)
        raise CheckpointError(
            "the state of an EmbeddingCollection is not a reference to saved rows",
            fix="load a state_dict of a model with an EmbeddingCollection",
        )


def write_rows(exchange: Exchange, url: str, settings: Mapping[str, Any]) -> Reference:
    """Write all rows of an exchange as a snapshot with these settings, among them "steps"."""
    exchange.flush()
    cut = exchange.rows.cut()
    checkpoint = Checkpoint({**settings, COUNTS: cut.counts}, {}, {}, (), rows=cut.write)
    try:
        manifest = write_checkpoint(url, checkpoint)
    except CheckpointError:
        cut.put_back()
        raise
    return Reference(Storage(url).absolute, manifest.id, settings["steps"])


def reference_to(url: str, tables: Mapping[str, Any], expected: Reference | None = None) -> Reference:
    """Return the reference to a snapshot; without a URL, to the rows of a new store.

    Args:
        url: of the snapshot.
        tables: settings of the tables that must be equal to the saved ones.
        expected: the snapshot that must be there, default any.

    Raises:
        CheckpointError: the snapshot is missing or damaged, or another one is there.
        ConfigError: the tables differ.
    """
    if not url:
        return Reference()
    manifest = read_manifest(Storage(url))
    if expected is not None and manifest.id != expected.id:
        raise CheckpointError(
            "the folder has other rows than the state_dict refers to",
            where=url,
            why="the rows were saved there again, after that state_dict was made",
            fix="save rows in a new folder each time",
        )
    with reading_settings(url):
        saved, steps = manifest.settings["tables"], int(manifest.settings["steps"])
        differing = [name for name in {**tables, **saved} if tables.get(name) != saved.get(name)]
    if differing:
        here, there = (of.get(differing[0], "missing") for of in (tables, saved))
        raise ConfigError(
            f"table {differing[0]!r} is {here} here, and {there} in the snapshot",
            where=url,
            fix="make the EmbeddingCollection with the features and the optimizer of the saved one",
        )
    return Reference(Storage(url).absolute, manifest.id, steps)


def read_rows(exchange: Exchange, url: str) -> None:
    """Replace the rows of an exchange with the rows of a snapshot; without a URL, delete them.

    Raises:
        CheckpointError: the snapshot is missing or damaged; all rows are deleted.
    """
    exchange.rows.clear()
    if url:
        try:
            exchange.rows.read(url, exact=True)
        except CheckpointError:
            exchange.rows.clear()
            raise
