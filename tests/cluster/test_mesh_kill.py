"""A process of a mesh of eight dies: all others say so, and the run goes on from its snapshot."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from satrap.checkpoint import Series
from satrap.dense import Mesh
from satrap.settings.mesh import PipelineSchedule
from tests.cluster.mesh_runs import run, saved
from tests.cluster.runs import eventually
from tests.dense.processes import started

DEADLINE = 60.0


def steps(place: str) -> list[int]:
    return Series(place).steps() if Path(place).exists() else []


@pytest.mark.dense
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("schedule", "victim"),
    [("1f1b", 6), ("1f1b", 0), ("interleaved_1f1b", 3)],
    ids=["last stage of the second share", "the first of all", "two stages in each process"],
)
def test_a_killed_process_of_eight(schedule: PipelineSchedule, victim: int, tmp_path: Path) -> None:
    mesh = Mesh(2, 2, True, pipeline=2, schedule=schedule)
    task: dict[str, Any] = {"mode": "sync", "model": "deep" if mesh.per_rank > 1 else "stacked"}
    place = str(tmp_path / "checkpoints")
    run(tmp_path / "plain", mesh, [{**task}])

    begun = {**task, "checkpoints": place, "run": "run", "saved": str(tmp_path / "begun")}
    tasks = tmp_path / "tasks.json"
    tasks.write_text(json.dumps([begun]))
    given = json.dumps(asdict(mesh)), str(tasks), str(DEADLINE)
    with (
        started("tests.cluster.meshes", mesh.size, *given, stderr=subprocess.PIPE) as processes,
        ThreadPoolExecutor(mesh.size) as pool,
    ):
        said = [pool.submit(process.communicate) for process in processes]
        assert eventually(lambda: bool(steps(place)) or any(one.done() for one in said))
        os.kill(processes[victim].pid, signal.SIGKILL)
        start = time.monotonic()
        errors = [one.result()[1] for one in said]
        took = time.monotonic() - start
    assert took < DEADLINE
    for rank, (process, error) in enumerate(zip(processes, errors, strict=True)):
        if rank == victim:
            assert process.returncode == -signal.SIGKILL
            continue
        assert process.returncode == 1
        assert f"satrap.errors.ExchangeError: worker {rank} lost worker {victim}" in error, (rank, error)
    assert not (tmp_path / "begun").exists()

    run(tmp_path / "again", mesh, [{**task, "checkpoints": place, "resume": True}])
    expected, found = (saved(str(tmp_path / name / "saved 0")) for name in ("plain", "again"))
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert found[key].tobytes() == value.tobytes(), key
