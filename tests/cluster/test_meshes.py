"""Over every mesh a network learns what it learns in one process: losses, weights and rows."""

from __future__ import annotations

import json
import signal
import subprocess
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from satrap.checkpoint.files.storage import Storage
from satrap.checkpoint.manifest import read_manifest
from satrap.checkpoint.saved_dense import is_dense_file
from satrap.dense import Mesh
from satrap.train import Checkpointing
from tests.cluster.mesh_runs import EVERY, Numbers, assert_near, dense_files, run, saved
from tests.cluster.meshes import MODELS, Mine, make_trainer, whole
from tests.dense.processes import started
from tests.train.plain import Batches

SHAPES = [(2, 1), (4, 1), (1, 2), (1, 4), (2, 2)]
LONG = [Mesh(d, t, sharded) for d, t in SHAPES for sharded in (False, "gradients", True)]
LONG = [mesh for mesh in LONG if not mesh.whole] + [Mesh(4, 1, True, 2), Mesh(4, 1, "gradients", 2)]
LONG += [Mesh(4, 1, "optimizer", 2), Mesh(2, 2, "optimizer")]
KINDS = [Mesh(2, 1, True), Mesh(1, 2), Mesh(2, 2, True), Mesh(pipeline=2), Mesh(2, 1, True, pipeline=2)]
SELECTED = [pytest.param(Mesh(4, 1, True, 2), marks=pytest.mark.slow), Mesh(1, 2), Mesh(2, 2, True)]


def name(mesh: Mesh) -> str:
    size = f" by {mesh.shard_size}" if mesh.shard_size else ""
    return f"{mesh.data}x{mesh.tensor} {mesh.sharded}{size}"


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What one process learns from all shares of each step; by mode and number of shares."""

    @cache
    def learn(mode: str, shares: int, **options: Any) -> tuple[list[float], Numbers]:
        trainer, losses = make_trainer(mode, **options)
        trainer.fit(Batches(whole(shares)))
        place = str(tmp_path_factory.mktemp("alone"))
        trainer.save(place)
        trainer.close()
        return losses, saved(place)

    return learn


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What workers learn that have a whole network each."""

    @cache
    def learn(shares: int, **options: Any) -> tuple[list[float], Numbers]:
        folder = tmp_path_factory.mktemp("copies")
        [answers] = run(folder, Mesh(shares), [{"mode": "hybrid", **options}])
        return answers[0]["losses"], saved(str(folder / "saved 0"))

    return learn


def check(
    mesh: Mesh, ways: list[tuple[str, str]], folder: Path, alone: Any, copies: Any, **options: Any
) -> None:
    found = run(folder, mesh, [{"exchange": exchange, "mode": mode, **options} for exchange, mode in ways])
    parts = sum(p.numel() for p in MODELS[options.get("model", "mine")]().parameters())
    for (exchange, mode), answers, number in zip(ways, found, range(len(ways)), strict=True):
        # In hybrid, each of several workers takes an update of its own.
        of_one = mode == "sync" or mesh.data == 1
        model = {key: options[key] for key in ("model",) if key in options}
        losses, numbers = alone(mode, mesh.data, **model) if of_one else copies(mesh.data, **model)
        # Over servers, the updates of several workers in hybrid arrive in any order.
        loose = mode == "hybrid" and exchange == "servers" and mesh.data > 1
        for answer in answers:
            assert answer["losses"] == pytest.approx(losses, abs=0.05 if loose else 1e-5)
            assert answer["metrics"] == answers[0]["metrics"]
            assert answer["kept"] < parts
        if not loose:
            assert_near(saved(str(folder / f"saved {number}")), numbers)


@pytest.mark.cluster
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mesh", SELECTED, ids=name)
def test_a_mesh_learns_what_one_process_learns(mesh: Mesh, tmp_path: Path, alone: Any, copies: Any) -> None:
    check(mesh, [("servers", "sync"), ("collective", "hybrid")], tmp_path, alone, copies)


@pytest.mark.cluster
@pytest.mark.timeout(600)
@pytest.mark.parametrize("model", ["mmoe", "ple"])
@pytest.mark.parametrize(
    "mesh", [Mesh(1, 2), pytest.param(Mesh(2, 2, True), marks=pytest.mark.slow)], ids=name
)
def test_experts_at_several_processes_learn_what_one_process_learns(
    mesh: Mesh, model: str, tmp_path: Path, alone: Any, copies: Any
) -> None:
    ways = [("servers", "sync"), ("collective", "hybrid")]
    check(mesh, ways, tmp_path, alone, copies, model=model, in_parts=True)


@pytest.mark.cluster
@pytest.mark.timeout(600)
def test_clipping_the_same_bytes_and_a_forgotten_division(tmp_path: Path, alone: Any) -> None:
    mesh, clip = Mesh(2, 2, True), 0.05
    tasks: list[dict[str, Any]] = [{"clip": clip}, {"clip": clip}, {}, {"forget": True}]
    found = run(tmp_path, mesh, [{"mode": "sync", **task} for task in tasks])
    # Not one process: where workers share a row, only its owner knows the norm of its gradient.
    [copies] = run(tmp_path / "copies", Mesh(2), [{"mode": "sync", "clip": clip}])
    losses, numbers = copies[0]["losses"], saved(str(tmp_path / "copies" / "saved 0"))
    clipped, again, plain, wrong = (saved(str(tmp_path / f"saved {i}")) for i in range(len(tasks)))
    assert found[0][0]["losses"] == pytest.approx(losses, abs=1e-5)
    assert_near(clipped, numbers)
    for key, value in clipped.items():
        assert again[key].tobytes() == value.tobytes()
    # The comparison notices clipping, and gradients that are four times too large.
    _, numbers = alone("sync", mesh.data)
    assert_near(plain, numbers)
    with pytest.raises(AssertionError):
        assert_near(clipped, numbers)
    with pytest.raises(AssertionError):
        assert_near(wrong, numbers)


@pytest.mark.cluster
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "mesh", [Mesh(2, 2, True), pytest.param(Mesh(2, 1, "optimizer"), marks=pytest.mark.slow)], ids=name
)
def test_micro_batches_over_a_mesh_make_the_step_of_the_batch(
    mesh: Mesh, tmp_path: Path, alone: Any, copies: Any
) -> None:
    """Also at the end, where one share has no batches left."""
    ways = [("servers", "sync"), ("collective", "hybrid")]
    check(mesh, ways, tmp_path, alone, copies, microbatches=5, unit=256)


@pytest.mark.cluster
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "mesh", [Mesh(2, 1, True), pytest.param(Mesh(2, 2, True), marks=pytest.mark.slow)], ids=name
)
def test_recomputed_activations_change_no_bit_over_a_mesh(mesh: Mesh, tmp_path: Path) -> None:
    tasks = [{"checkpoint_activations": again, "precision": "bfloat16"} for again in (False, True)]
    plain, again = run(tmp_path, mesh, [{"mode": "sync", "steps": 10, **task} for task in tasks])
    assert [one["losses"] for one in again] == [one["losses"] for one in plain]
    expected, found = (saved(str(tmp_path / f"saved {number}")) for number in range(2))
    for key, value in expected.items():
        assert found[key].tobytes() == value.tobytes()


@pytest.mark.cluster
@pytest.mark.timeout(900)
def test_copies_with_translated_blocks_learn_what_one_process_learns(tmp_path: Path, alone: Any) -> None:
    [answers] = run(tmp_path, Mesh(2), [{"mode": "sync", "compile": True}])
    losses, numbers = alone("sync", 2)
    assert answers[0]["losses"] == pytest.approx(losses, abs=1e-5)
    assert_near(saved(str(tmp_path / "saved 0")), numbers)


@pytest.mark.cluster
@pytest.mark.timeout(600)
def test_in_16_bits_a_mesh_learns_nearly_what_one_process_does(tmp_path: Path, alone: Any) -> None:
    """Each process rounds its part of a gradient or sum, and Adam turns small gradients into whole steps."""
    mesh, high = Mesh(2, 2, True), 2.0**40
    kinds: list[dict[str, Any]] = [{"precision": "bfloat16"}, {"precision": "float16"}]
    tasks = [*kinds, {"precision": "float16", "scale": high}]
    found = run(tmp_path, mesh, [{"mode": "sync", **task} for task in tasks])
    wide, _ = alone("sync", mesh.data)
    trainer, _ = make_trainer("sync")
    start = {name: tensor.numpy() for name, tensor in trainer.model.state_dict().items()}
    trainer.close()
    for kind, answers in zip(kinds, found, strict=False):
        losses, numbers = alone("sync", mesh.data, **kind)
        assert answers[0]["losses"] == pytest.approx(losses, abs=1e-3)
        assert answers[0]["losses"] != pytest.approx(wide, abs=1e-5)
        assert answers[0]["refused"] == 0
        mine = weights_of(saved(str(tmp_path / f"saved {kinds.index(kind)}")))
        way = np.linalg.norm(weights_of(numbers) - weights_of(start))
        assert 0 < np.linalg.norm(mine - weights_of(numbers)) < way / 10
    # A scale at which float16 overflows: all processes refuse the same steps, and these do not count.
    for answer in found[2]:
        assert 1 < answer["scale"] == found[2][0]["scale"] < high
        assert answer["losses"] == found[2][0]["losses"]
        assert (answer["refused"], answer["updates"]) == (0, found[2][0]["updates"])
        assert 5 < answer["updates"] < len(wide)


def weights_of(numbers: Numbers) -> np.ndarray:
    return np.concatenate([numbers[name].ravel() for name in Mine().state_dict()])


def dense_bytes(place: str) -> dict[str, bytes]:
    """The files of a network in a checkpoint."""
    storage = Storage(place)
    manifest = read_manifest(storage)
    names = [name for name in manifest.files if is_dense_file(name)]
    return {name: storage.read(f"{manifest.data}/{name}", manifest.files[name]) for name in names}


@pytest.mark.cluster
@pytest.mark.timeout(600)
def test_a_process_killed_while_it_writes_its_part_leaves_the_model_that_was_there(tmp_path: Path) -> None:
    mesh, place = Mesh(2, 1, True), str(tmp_path / "saved 0")
    task = {"mode": "sync", "steps": 2, "read": 300}
    run(tmp_path, mesh, [task])
    before = dense_bytes(place)
    (tmp_path / "again.json").write_text(json.dumps([{**task, "run": "again", "killed": 1, "saved": place}]))
    given = json.dumps(asdict(mesh)), str(tmp_path / "again.json"), "10"
    with started("tests.cluster.meshes", mesh.size, *given, stderr=subprocess.PIPE) as processes:
        errors = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [1, -signal.SIGKILL]
    assert "worker 1 has sent no heartbeat for 10 s" in errors[0]
    assert dense_bytes(place) == before
    assert [name for name in Storage(place).names() if name.startswith("data-")] == [
        read_manifest(Storage(place)).data
    ]


@pytest.mark.dense
@pytest.mark.timeout(600)
def test_a_run_moves_from_mesh_to_mesh_and_into_one_process(tmp_path: Path, alone: Any) -> None:
    """With one share the position is the same on all meshes, so the moves change nothing but rounding."""
    place, steps = str(tmp_path / "checkpoints"), [10, 20]
    for number, mesh in enumerate((Mesh(1, 2), Mesh(1, 4))):
        task = {"mode": "sync", "checkpoints": place, "steps": steps[number], "resume": number > 0}
        run(tmp_path / str(number), mesh, [task])
    trainer, losses = make_trainer("sync")
    trainer.fit(Batches(whole(1)), checkpoint=Checkpointing(place), resume=True)
    trainer.save(str(tmp_path / "one"))
    expected, numbers = alone("sync", 1)
    assert losses == pytest.approx(expected[20:], abs=1e-5)
    assert_near(saved(str(tmp_path / "one")), numbers)
    trainer.close()


@pytest.mark.cluster
@pytest.mark.timeout(600)
def test_shares_resume_to_the_bit_and_on_another_mesh(tmp_path: Path) -> None:
    mesh, other, place = Mesh(2, 1, True), Mesh(2, 2), str(tmp_path / "checkpoints")
    # It ends amid a pass, after the snapshot of step 20, so that lookups are in flight there.
    begun = {"mode": "hybrid", "checkpoints": place, "steps": 28}
    once, _ = run(tmp_path / "once", mesh, [{"mode": "hybrid"}, begun])
    assert dense_files(place, 20) == ["model", "optimizer"]
    [again] = run(tmp_path / "again", mesh, [{"mode": "hybrid", "checkpoints": place, "resume": True}])
    assert [one["losses"] for one in again] == [one["losses"][20:] for one in once]
    expected, found = (saved(str(tmp_path / name / "saved 0")) for name in ("once", "again"))
    for key, value in expected.items():
        assert found[key].tobytes() == value.tobytes()

    task = {"mode": "sync", "checkpoints": place + "-sync"}
    run(tmp_path / "begun", mesh, [{**task, "steps": 20}, {"mode": "sync", "saved": str(tmp_path / "sync")}])
    run(tmp_path / "moved", other, [{**task, "resume": True}])
    assert_near(saved(str(tmp_path / "moved" / "saved 0")), saved(str(tmp_path / "sync")))


@pytest.mark.dense
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mesh", LONG, ids=name)
def test_every_mesh_learns_what_one_process_learns(
    mesh: Mesh, tmp_path: Path, alone: Any, copies: Any
) -> None:
    check(mesh, EVERY, tmp_path, alone, copies)
