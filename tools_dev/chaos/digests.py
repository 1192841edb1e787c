"""What it means that two checkpoints are the same."""

from __future__ import annotations

import hashlib
import json

from safetensors.numpy import load

from satrap.checkpoint import read_checkpoint
from satrap.checkpoint.files.storage import Storage
from satrap.checkpoint.manifest import read_manifest
from satrap.checkpoint.stores import is_store_file
from satrap.exchange.states import COUNTS


def digest(url: str) -> dict[str, str]:
    """Return digests of everything that a run goes on from, by name."""
    checkpoint = read_checkpoint(url)
    tensors = {**checkpoint.model, **checkpoint.extra}
    for rank, extra in enumerate(checkpoint.others, 1):
        tensors |= {f"worker {rank}.{name}": tensor for name, tensor in extra.items()}
    for index, entry in checkpoint.optimizer.get("state", {}).items():
        tensors |= {f"optimizer.{index}.{key}": value for key, value in entry.items()}
    found = {name: hashlib.sha256(tensor.numpy().tobytes()).hexdigest() for name, tensor in tensors.items()}
    rows: dict[str, list[bytes]] = {}
    for table, chunk in checkpoint.chunks:  # however they are cut into chunks and files
        columns = rows.setdefault(table, [b"", b"", b""])
        for i, column in enumerate((chunk.ids, chunk.weights, chunk.state)):
            columns[i] += column.tobytes()
    found |= {
        f"rows.{table}": hashlib.sha256(b"".join(columns)).hexdigest() for table, columns in rows.items()
    }
    run = checkpoint.settings.get("run", {})
    found["peers"] = json.dumps([peer["streams"] for peer in checkpoint.settings.get("peers", ())])
    for key in ("streams", "epoch", "control", "in_flight", "updates", "history"):
        found[f"run.{key}"] = json.dumps(run.get(key))
    for key in ("lr_scale", COUNTS):
        found[key] = json.dumps(checkpoint.settings.get(key), sort_keys=True)
    return {**found, **_stores(Storage(url))}


def _stores(storage: Storage) -> dict[str, str]:
    manifest = read_manifest(storage)
    return {
        f"{name}.{key}": hashlib.sha256(array.tobytes()).hexdigest()
        for name in filter(is_store_file, manifest.files)
        for key, array in load(storage.read(f"{manifest.data}/{name}", manifest.files[name])).items()
    }


def differences(found: dict[str, str], expected: dict[str, str]) -> list[str]:
    return sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
