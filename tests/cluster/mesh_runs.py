"""Trains a network over a mesh in several processes, and reads what they saved."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from satrap.checkpoint import Series, read_checkpoint
from satrap.checkpoint.files.storage import Storage
from satrap.checkpoint.manifest import read_manifest
from satrap.dense import Mesh
from satrap.exchange.servers import ShardServer
from tests.dense.processes import answers as in_processes

Numbers = dict[str, np.ndarray]


def saved(place: str) -> Numbers:
    """Weights, optimizer state and rows of a saved run."""
    found = read_checkpoint(place)
    numbers = {key: tensor.numpy() for key, tensor in found.model.items()}
    for index, entry in found.optimizer["state"].items():
        numbers |= {f"optimizer {index} {key}": np.asarray(value) for key, value in entry.items()}
    for table, chunk in found.chunks:
        order = np.argsort(chunk.ids)
        for part in ("ids", "weights", "state"):
            key = f"{table} {part}"
            own = getattr(chunk, part)[order]
            numbers[key] = np.concatenate([numbers[key], own]) if key in numbers else own
    for table in {key.removesuffix(" ids") for key in numbers if key.endswith(" ids")}:
        order = np.argsort(numbers[f"{table} ids"])
        for part in ("ids", "weights", "state"):
            numbers[f"{table} {part}"] = numbers[f"{table} {part}"][order]
    return numbers


def run(folder: Path, mesh: Mesh, tasks: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return what each process answers to each task; those over servers get two shards each."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        for number, task in enumerate(tasks):
            task.setdefault("run", f"run {number}")
            task.setdefault("saved", str(folder / f"saved {number}"))
            if task.pop("exchange", "collective") == "servers":
                shards = [stack.enter_context(ShardServer("127.0.0.1:0")) for _ in range(2)]
                task["shards"] = [shard.address for shard in shards]
        file = folder / "tasks.json"
        file.write_text(json.dumps(tasks))
        found = in_processes("tests.cluster.meshes", mesh.size, json.dumps(asdict(mesh)), str(file))
    return [[one[number] for one in found] for number in range(len(tasks))]


def assert_near(found: Numbers, expected: Numbers, tolerance: float = 1e-5) -> None:
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=0, atol=tolerance, err_msg=key)


EVERY = [(exchange, mode) for exchange in ("servers", "collective") for mode in ("sync", "hybrid")]


def dense_files(place: str, step: int) -> list[str]:
    """The files of the network in a snapshot, if each of two processes wrote its own half."""
    files = read_manifest(Storage(Series(place).place(step))).files
    kinds = sorted({name.partition(".")[0] for name in files} & {"model", "optimizer"})
    for kind in kinds:
        sizes = [files[f"{kind}.part-{number:04d}.safetensors"].bytes for number in range(2)]
        assert f"{kind}.safetensors" not in files
        assert min(sizes) > 0.6 * max(sizes)
    return kinds
