"""What it means that two checkpoints are the same."""

from __future__ import annotations

import hashlib
import json

from satrap.checkpoint import Checkpoint


def digest(checkpoint: Checkpoint) -> dict[str, str]:
    """Return digests of everything that the run goes on from, by name."""
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
    return {**found, "lr_scale": json.dumps(checkpoint.settings.get("lr_scale"))}


def differences(found: dict[str, str], expected: dict[str, str]) -> list[str]:
    return sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
