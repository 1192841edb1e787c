"""One process of a mesh: trains a network, saves it and resumes; reports the memory of both."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import satrap  # noqa: F401  # isort: skip  # before torch, like satrap's programs: see satrap.runtime.threads
import torch
from tests.cluster import meshes
from tests.train.plain import Batches, make_batches
from torch import Tensor, nn

from satrap.batch import EmbeddedBatch
from satrap.dense import ConnectedWorkers, Mesh
from satrap.runtime.malloc import keep_freed_memory, release_freed_memory
from satrap.train import Checkpointing

RETURNED = 1 << 17
"""Block size from which the C library returns freed memory to the system at once, so it does not count."""


class Wide(nn.Module):
    """A stack of equal linear layers, and small ones at both ends."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.enter, self.head = nn.Linear(25, width), nn.Linear(width, 1)
        self.tower = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))

    def forward(self, batch: EmbeddedBatch) -> Tensor:
        output: Tensor = self.head(self.tower(self.enter(batch.flat())))
        return output


def resident(key: str) -> float:
    """Return "VmRSS", the resident memory of this process, or "VmHWM", its peak, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith(key))


def measured(work: Callable[[], object]) -> dict[str, float]:
    """Return megabytes before a piece of work and at its peak, and seconds."""
    release_freed_memory()
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here on
    start = time.perf_counter()
    work()
    took = time.perf_counter() - start
    return {"before_mb": before, "peak_mb": resident("VmHWM"), "seconds": took}


def main() -> None:
    store, rank, settings, place = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]), sys.argv[4]
    mesh = Mesh(2, sharded=True)
    workers = ConnectedWorkers(store, rank, mesh.size, mesh=mesh, deadline=600)
    meshes.MODELS["wide"] = partial(Wide, settings["width"], settings["layers"])
    arguments: dict[str, Any] = {"dense": partial(torch.optim.SGD, lr=0.01, momentum=0.9)}
    exchange = meshes.exchange_of(workers, (), "sync", "run")
    # Sharded initialization: no process ever holds the whole network before it is saved.
    trainer, _ = meshes.make_trainer(
        "sync", "wide", workers=workers, exchange=exchange, in_parts=True, **arguments
    )
    keep_freed_memory(RETURNED, RETURNED)
    data, plan = Batches(make_batches(2, seed=rank)), Checkpointing(f"{place}-snapshots", every_steps=2)
    trainer.fit(data, checkpoint=plan)
    figures: dict[str, Any] = {"saving": measured(lambda: trainer.save(place))}
    figures["reading"] = measured(lambda: trainer.fit(data, checkpoint=plan, resume=True))
    figures["network_mb"] = sum(p.numel() * p.itemsize for p in trainer.model.parameters()) / 1e6
    print(json.dumps(figures))
    sys.stdout.flush()
    trainer.close()
    workers.close()
    os._exit(0)


if __name__ == "__main__":
    main()
