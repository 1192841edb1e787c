"""A network that begins in parts has the bytes of one that begins whole, and needs memory for its parts."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from satrap.dense import Mesh
from tests.cluster.mesh_runs import run, saved
from tests.dense.processes import answers, started
from tests.support.containers import container

MESHES = [Mesh(2, sharded=True), Mesh(1, 2), Mesh(1, pipeline=2)]
LONG = [Mesh(4, sharded=True, shard_size=2), Mesh(2, 2, True), Mesh(2, 2), Mesh(2, 1, "optimizer")]
LONG += [Mesh(2, pipeline=2, sharded=True), Mesh(1, 2, pipeline=2), Mesh(2, 2, True, pipeline=2)]


def check(mesh: Mesh, folder: Path) -> None:
    tasks: list[dict[str, Any]] = [
        {"mode": "sync", "steps": steps, "model": model, "in_parts": in_parts, "unit": 100}
        for model in (["stacked"] if mesh.pipeline > 1 else ["mine", "stacked"])
        for steps in (1, 20)
        for in_parts in (False, True)
    ]
    found = run(folder, mesh, tasks)
    for number in range(0, len(tasks), 2):
        assert found[number] == found[number + 1]
        whole, parts = (saved(str(folder / f"saved {number + i}")) for i in range(2))
        assert whole.keys() == parts.keys()
        for key, value in whole.items():
            assert parts[key].tobytes() == value.tobytes(), key


@pytest.mark.cluster
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_a_network_in_parts_has_the_bytes_of_a_whole_one(mesh: Mesh, tmp_path: Path) -> None:
    check(mesh, tmp_path)


@pytest.mark.dense
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mesh", LONG, ids=str)
def test_networks_in_parts_have_the_bytes_of_whole_ones(mesh: Mesh, tmp_path: Path) -> None:
    check(mesh, tmp_path)


@pytest.mark.cluster
@pytest.mark.timeout(600)
@pytest.mark.parametrize("shape", [{"data": 2, "sharded": True}, {"tensor": 2}], ids=str)
def test_a_process_needs_memory_for_its_part_and_some_layers(shape: dict[str, Any]) -> None:
    width = 2048
    layer = width * (width + 1) * 4
    [parts, whole] = (
        answers("tests.dense.begin", 2, json.dumps(shape), str(width), how) for how in ("parts", "whole")
    )
    for (took, part), (before, _) in zip(parts, whole, strict=True):
        assert part < 4.1 * layer  # a half of eight layers
        assert took < part + 3 * layer < 8 * layer < before


@pytest.mark.dense
@pytest.mark.timeout(600)
def test_four_processes_begin_where_four_whole_networks_have_no_room() -> None:
    """605 MB of weights, 151 MB in each process, in a container of 1.4 GB; whole networks take 2.4 GB."""
    width, shape = 4350, json.dumps({"data": 4, "sharded": True})
    with container(1_400_000_000) as group:
        for took, part in answers("tests.dense.begin", 4, shape, str(width), "parts", group):
            assert part < 0.26 * 8 * width * (width + 1) * 4
            assert took < 350_000_000
        with started("tests.dense.begin", 4, shape, str(width), "whole", group) as processes:
            killed = [process.wait(timeout=500) for process in processes]
            assert -signal.SIGKILL in killed
