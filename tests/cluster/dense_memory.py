"""The memory of a network over many meshes: as predicted, and as PyTorch's tracker counts it."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from typing import Any

from satrap.dense import Mesh
from satrap.tools.plan.dense.meshes import needs
from tests.tools.plan.dense.measured import network

PROGRAM = "tests.tools.plan.dense.measured"
SETTINGS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"data": 2}, {}),
    ({"data": 2, "sharded": True}, {}),
    ({"data": 4, "sharded": True, "shard_size": 2}, {}),
    ({"data": 8, "sharded": "gradients"}, {}),
    ({"tensor": 2}, {}),
    ({"data": 2, "tensor": 2, "sharded": True}, {}),
    ({"tensor": 2}, {"model": "mmoe"}),
    ({"data": 2}, {"checkpoint_activations": True}),
    ({"data": 2}, {"precision": "bfloat16"}),
    ({"data": 2}, {"microbatches": 4}),
    ({"data": 2, "sharded": True}, {"microbatches": 4}),
    ({"pipeline": 2, "schedule": "gpipe"}, {}),
    ({"pipeline": 2}, {}),
    ({"data": 2, "pipeline": 4}, {}),
    ({"data": 2, "sharded": "optimizer"}, {"microbatches": 4}),
    ({"data": 2, "sharded": True, "pipeline": 2}, {}),
    ({"data": 4, "sharded": True, "shard_size": 2, "pipeline": 2, "schedule": "gpipe"}, {}),
    ({"data": 2, "sharded": True, "tensor": 2, "pipeline": 2}, {}),
    ({"tensor": 2, "pipeline": 2}, {}),
    ({"pipeline": 2, "schedule": "interleaved_1f1b"}, {}),
    ({"pipeline": 2, "schedule": "looped_bfs", "stages_per_rank": 3}, {}),
    ({"data": 2, "sharded": True, "pipeline": 2, "schedule": "interleaved_1f1b"}, {}),
    ({"pipeline": 2}, {"precision": "bfloat16"}),
    ({"pipeline": 2, "schedule": "gpipe"}, {"checkpoint_activations": True}),
    ({"data": 2, "sharded": True, "pipeline": 2}, {"precision": "bfloat16", "checkpoint_activations": True}),
]
CASES = [
    (mesh, options, stage) for mesh, options in SETTINGS for stage in range(int(mesh.get("pipeline", 1)))
]
DIVIDED = 20
"""How many cases at the end are stages whose copies, or layers, are divided, or several in a process."""


@cache
def predicted(setting: int) -> list[int]:
    """Bytes in each stage, or in the first process without stages."""
    mesh, options = SETTINGS[setting]
    return [need.peak for need in needs(network(**options), Mesh(**mesh))]


def pretended(cases: list[Any]) -> list[int]:
    """What PyTorch's tracker counts in one process that has the place of each case in its mesh."""
    command = [sys.executable, "-m", PROGRAM, "none", "0", json.dumps(cases)]
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=500).stdout
    return [int(line) for line in said.split()]


@cache
def together() -> list[int]:
    """Of all cases but the divided ones: PyTorch remembers the groups of equal meshes in a process."""
    return pretended(CASES[:-DIVIDED])


def pretended_alone(case: int) -> int:
    """What `pretended` says of one of `CASES`."""
    return pretended([CASES[case]])[0] if case >= len(CASES) - DIVIDED else together()[case]
