"""Trains a network whose optimizer and weights may be on a disk, and measures its memory without files.

As a program, it prints the most bytes of anonymous memory above those of a small network, and what the plan
predicts.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from satrap.batch import Batch, EmbeddedBatch
from satrap.dense import Mesh, offload_weights, offloaded
from satrap.dense.memory.initial_weights import build
from satrap.tools.plan.dense import Inputs, NetworkSpec
from satrap.tools.plan.dense.meshes import needs
from satrap.train import Trainer
from satrap.train.step.loss import LabelLoss
from tests.tools.plan.dense.measured import adam, arguments
from tests.train.plain import Batches, make_batches, make_schema

SIZE, WIDTH, LAYERS, STEPS = 512, 1536, 8, 3


class Wide(nn.Module):
    """Has more numbers in its weights than in its activations."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.enter = nn.Linear(25, width)
        self.tower = nn.Sequential(*(nn.Linear(width, width) for _ in range(LAYERS)))
        self.head = nn.Linear(width, 1)

    def forward(self, batch: EmbeddedBatch) -> Tensor:
        found: Tensor = self.head(self.tower(self.enter(batch.flat())))
        return found


def train(width: int, batch: Batch, offload: str, folder: str, mode: dict[str, Any]) -> None:
    """Train on a batch, with "optimizer" or "weights" on a disk, or "nothing"."""
    model = build(lambda: Wide(width), 1, in_parts=True) if offload == "weights" else Wide(width)
    if offload == "weights":
        offload_weights(model, folder)
    make = adam if offload == "nothing" else offloaded(adam, folder)
    trainer = Trainer(model, make_schema(), **arguments(mode) | {"dense_optimizer": make})
    trainer.fit(Batches([batch] * STEPS), steps=STEPS)
    trainer.close()


def network(**options: Any) -> NetworkSpec:
    """Return what the plan is told of the network."""
    schema = make_schema()
    trainer = Trainer(Wide(8), schema, **arguments({}))
    plan = trainer.predictor.plan
    inputs = Inputs.of(schema, plan, plan.ticket(make_batches(1, size=SIZE)[0]), SIZE)
    trainer.close()
    return NetworkSpec(lambda: Wide(WIDTH), inputs, adam, LabelLoss(schema.labels), **options)


def anonymous() -> int:
    """Bytes of memory that belong to no file."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    [line] = [one for one in lines if one.startswith("RssAnon")]
    return int(line.split()[1]) << 10


def main() -> None:
    """Measure and predict."""
    offload, folder, mode = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    [batch] = make_batches(1, size=SIZE)
    away = {} if offload == "nothing" else {"offload": "disk", "weights_off": offload == "weights"}
    [need] = needs(network(**mode, **away), Mesh())
    torch.set_num_threads(1)
    train(128, batch, offload, folder, mode)
    before, most, ended = anonymous(), 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not ended.is_set():
            most = max(most, anonymous())
            time.sleep(0.001)

    watcher = threading.Thread(target=watch)
    watcher.start()
    train(WIDTH, batch, offload, folder, mode)
    ended.set()
    watcher.join()
    print(json.dumps([most - before, need.peak]))


if __name__ == "__main__":
    main()
