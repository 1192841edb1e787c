"""A process that begins with its part of a network, or with all of it; it prints what memory that took.

It does so in a control group, if it is given the file through which it enters one.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from torch import nn

from satrap.dense import ConnectedWorkers, Mesh
from satrap.dense.backends.sharded import ShardedBackend
from satrap.dense.memory.initial_weights import build


def network(width: int) -> nn.Module:
    """Eight square layers."""
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(8)))


def peak() -> int:
    """The most bytes that this process has had in memory."""
    [line] = [one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith("VmHWM")]
    return int(line.split()[1]) << 10


def main() -> None:
    store, rank, shape, width, how, *group = sys.argv[1:]
    mesh = Mesh(**json.loads(shape))
    workers = ConnectedWorkers(store, int(rank), mesh.size, mesh=mesh, deadline=200)
    # What the first network of a process takes for itself.
    ShardedBackend(
        build(lambda: network(300), 1, in_parts=True), lambda p: torch.optim.SGD(p, lr=0.1), None, workers
    )
    Path("/proc/self/clear_refs").write_text("5")
    if group:  # what was loaded before counts for nothing there
        Path(group[0]).write_text("0")
    before = peak()
    model = build(lambda: network(int(width)), 1, in_parts=how != "whole")
    dense = ShardedBackend(model, lambda p: torch.optim.SGD(p, lr=0.1), None, workers)
    took = peak() - before
    print(json.dumps([took, sum(p.numel() * 4 for p in dense._locals)]), flush=True)
    workers.close()
    os._exit(0)


if __name__ == "__main__":
    main()
