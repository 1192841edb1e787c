"""In stages, a network learns what it learns in one process: losses, weights and rows."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from satrap.dense import Mesh
from satrap.settings.mesh import INTERLEAVED
from satrap.train import Checkpointing
from tests.cluster.mesh_runs import EVERY, Numbers, assert_near, dense_files, run, saved
from tests.cluster.meshes import MODELS, make_trainer, whole
from tests.train.plain import Batches

LONG = [
    *(Mesh(data, pipeline=p, schedule=s) for data, p in ((1, 2), (1, 4), (2, 2)) for s in ("gpipe", "1f1b")),
    Mesh(2, tensor=2, pipeline=2),
    Mesh(2, 1, True, pipeline=2, schedule="gpipe"),
    Mesh(4, 1, True, 2, pipeline=2),
    Mesh(2, 2, True, pipeline=2),
]
INTERLEAVED_LONG = [
    Mesh(pipeline=4, schedule="interleaved_1f1b"),
    Mesh(pipeline=4, schedule="looped_bfs", microbatches=3),
    Mesh(pipeline=4, schedule="interleaved_1f1b", microbatches=3),
    Mesh(pipeline=2, schedule="interleaved_1f1b", stages_per_rank=4, microbatches=6),
    Mesh(2, 1, True, pipeline=2, schedule="interleaved_1f1b", stages_per_rank=4),
    Mesh(2, 1, True, pipeline=2, schedule="looped_bfs", stages=("blocks.1", "blocks.2", "blocks.5")),
    Mesh(1, 2, pipeline=2, schedule="interleaved_1f1b"),
]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What one process learns from all shares of each step; by mode, number of shares, and clipping."""

    @cache
    def learn(
        mode: str, shares: int, clip: float | None = None, model: str = "stacked", **options: Any
    ) -> tuple[list[float], Numbers]:
        trainer, losses = make_trainer(mode, model, clip_norm=clip, **options)
        trainer.fit(Batches(whole(shares)))
        place = str(tmp_path_factory.mktemp("alone"))
        trainer.save(place)
        trainer.close()
        return losses, saved(place)

    return learn


def check(mesh: Mesh, tasks: list[dict[str, Any]], folder: Path, alone: Any) -> None:
    found = run(folder, mesh, [{"model": "stacked", **task} for task in tasks])
    for number, (task, answers) in enumerate(zip(tasks, found, strict=True)):
        model = task.get("model", "stacked")
        parts = sum(p.numel() for p in MODELS[model]().parameters())
        losses, numbers = alone(task["mode"], mesh.data, task.get("clip"), model)
        for answer in answers:
            assert answer["losses"] == pytest.approx(losses, abs=1e-5)
            assert answer["metrics"] == answers[0]["metrics"]
            assert answer["kept"] < parts
        assert_near(saved(str(folder / f"saved {number}")), numbers)


@pytest.mark.cluster
@pytest.mark.timeout(600)
def test_two_stages_learn_what_one_process_learns(tmp_path: Path, alone: Any) -> None:
    tasks: list[dict[str, Any]] = [
        {"exchange": "servers", "mode": "sync"},
        {"exchange": "collective", "mode": "hybrid"},
        {"mode": "sync", "clip": 0.05},
    ]
    check(Mesh(pipeline=2, schedule="gpipe"), tasks, tmp_path, alone)


@pytest.mark.cluster
@pytest.mark.timeout(600)
def test_copies_of_stages_and_a_mean_of_means(tmp_path: Path, alone: Any) -> None:
    """The last share has fewer batches, and the last batch fewer samples than parts."""
    mesh = Mesh(2, pipeline=2)
    tasks: list[dict[str, Any]] = [{"exchange": "servers", "mode": "sync"}, {"mode": "sync"}]
    check(mesh, tasks, tmp_path, alone)
    first, again = (saved(str(tmp_path / f"saved {number}")) for number in range(2))
    assert_near(first, again)
    run(tmp_path / "wrong", mesh, [{"model": "stacked", "mode": "sync", "forget": True}])
    with pytest.raises(AssertionError):
        assert_near(saved(str(tmp_path / "wrong" / "saved 0")), alone("sync", 2)[1])


@pytest.mark.cluster
@pytest.mark.timeout(600)
def test_copies_of_stages_that_share_their_weights(tmp_path: Path, alone: Any) -> None:
    """Some layers are gathered by themselves, the others together."""
    tasks: list[dict[str, Any]] = [
        {"exchange": "servers", "mode": "sync", "unit": 256},
        {"mode": "sync", "unit": 256},
    ]
    check(Mesh(2, 1, True, pipeline=2), tasks, tmp_path, alone)


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_stages_with_divided_layers_learn_what_one_process_learns(tmp_path: Path, alone: Any) -> None:
    mesh = Mesh(tensor=2, pipeline=2, stages=("blocks.1",))
    tasks: list[dict[str, Any]] = [
        {"exchange": "servers", "mode": "sync"},
        {"mode": "sync", "clip": 0.05},
    ]
    check(mesh, tasks, tmp_path, alone)


@pytest.mark.cluster
@pytest.mark.timeout(600)
@pytest.mark.parametrize("schedule", [INTERLEAVED[0], pytest.param(INTERLEAVED[1], marks=pytest.mark.slow)])
def test_two_stages_in_each_process_learn_what_one_process_learns(
    schedule: Any, tmp_path: Path, alone: Any
) -> None:
    tasks: list[dict[str, Any]] = [
        {"exchange": "servers", "mode": "sync", "in_parts": True},
        {"exchange": "collective", "mode": "hybrid"},
        {"mode": "sync", "clip": 0.05},
    ]
    check(Mesh(pipeline=2, schedule=schedule), tasks, tmp_path, alone)


@pytest.mark.cluster
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "mesh",
    [
        Mesh(pipeline=2, microbatches=2),
        pytest.param(Mesh(2, 2, True, pipeline=2, microbatches=2), marks=pytest.mark.slow),
        pytest.param(
            Mesh(1, pipeline=2, schedule="interleaved_1f1b", microbatches=2), marks=pytest.mark.slow
        ),
    ],
    ids=str,
)
def test_stages_in_16_bits_and_with_recomputed_activations(mesh: Mesh, tmp_path: Path, alone: Any) -> None:
    """Parts are rounded as in one process, but sums of gradients may come in another order."""
    high, precisions = 2.0**40, ("bfloat16", "float16")
    tasks: list[dict[str, Any]] = [
        {"precision": precision, "checkpoint_activations": again}
        for precision in precisions
        for again in (False, True)
    ]
    tasks.append({"precision": "float16", "scale": high})
    found = run(tmp_path, mesh, [{"model": "stacked", "mode": "sync", **task} for task in tasks])
    wide, _ = alone("sync", mesh.data)
    trainer, _ = make_trainer("sync", "stacked")
    start = trainer.model.state_dict()
    trainer.close()
    for number, precision in enumerate(precisions):
        losses, numbers = alone("sync", mesh.data, precision=precision, microbatches=mesh.parts)
        plain, again = (saved(str(tmp_path / f"saved {2 * number + one}")) for one in (0, 1))
        answers = found[2 * number]
        assert answers[0]["losses"] == pytest.approx(losses, abs=5e-3)
        assert answers[0]["losses"] != pytest.approx(wide, abs=1e-5)
        assert answers[0]["refused"] == 0
        off = sum(np.square(plain[name] - numbers[name]).sum() for name in start)
        way = sum(np.square(first.numpy() - numbers[name]).sum() for name, first in start.items())
        assert off < way / 100
        assert [one["losses"] for one in found[2 * number + 1]] == [one["losses"] for one in answers]
        for key, value in plain.items():
            assert again[key].tobytes() == value.tobytes()
    # A scale at which float16 overflows: all processes refuse the same steps, and these do not count.
    for answer in found[-1]:
        assert 1 < answer["scale"] == found[-1][0]["scale"] < high
        assert answer["losses"] == found[-1][0]["losses"]
        assert (answer["refused"], answer["updates"]) == (0, found[-1][0]["updates"])
        assert 5 < answer["updates"] < len(wide)


@pytest.mark.dense
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mesh", INTERLEAVED_LONG, ids=str)
def test_several_stages_in_each_process_learn_what_one_process_learns(
    mesh: Mesh, tmp_path: Path, alone: Any
) -> None:
    task = {"mode": "sync", "model": "deep"}
    clipped = {**task, "clip": 0.05}
    check(mesh, [{**task, "exchange": "servers"}, {**task, "in_parts": True, "unit": 256}], tmp_path, alone)
    run(tmp_path / "clipped", mesh, [{**clipped}])
    # Not one process: where workers share a row, only its owner knows the norm of its gradient.
    run(tmp_path / "copies", Mesh(mesh.data), [{**clipped}])
    found, expected = (saved(str(tmp_path / name / "saved 0")) for name in ("clipped", "copies"))
    assert_near(found, expected)


@pytest.mark.dense
@pytest.mark.timeout(600)
def test_a_run_moves_from_stages_into_one_process(tmp_path: Path, alone: Any) -> None:
    """With one share the position is the same on all meshes, so the moves change nothing but rounding."""
    place = str(tmp_path / "checkpoints")
    for number, mesh in enumerate((Mesh(pipeline=2), Mesh(tensor=2, pipeline=2))):
        task = {"mode": "sync", "checkpoints": place, "steps": 10 * (number + 1), "resume": number > 0}
        run(tmp_path / str(number), mesh, [{"model": "stacked", **task}])
    trainer, losses = make_trainer("sync", "stacked")
    trainer.fit(Batches(whole(1)), checkpoint=Checkpointing(place), resume=True)
    trainer.save(str(tmp_path / "one"))
    trainer.close()
    expected, numbers = alone("sync", 1)
    assert losses == pytest.approx(expected[20:], abs=1e-5)
    assert_near(saved(str(tmp_path / "one")), numbers)


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_moves_between_several_stages_and_one_in_each_process(tmp_path: Path, alone: Any) -> None:
    place = str(tmp_path / "checkpoints")
    several = Mesh(pipeline=2, schedule="interleaved_1f1b")
    for number, mesh in enumerate((several, Mesh(pipeline=2), several)):
        task: dict[str, Any] = {"mode": "sync", "checkpoints": place, "resume": number > 0}
        steps = {} if number == 2 else {"steps": 10 * (number + 1)}
        run(tmp_path / str(number), mesh, [{"model": "stacked", **task, **steps}])
    assert dense_files(place, 20) == ["model", "optimizer"]
    assert_near(saved(str(tmp_path / "2" / "saved 0")), alone("sync", 1)[1])


@pytest.mark.dense
@pytest.mark.timeout(600)
def test_a_run_moves_into_stages_that_share_their_weights_and_out_of_them(tmp_path: Path, alone: Any) -> None:
    place = str(tmp_path / "checkpoints")
    meshes = (Mesh(2, 1, True, pipeline=2), Mesh(2, 1, "gradients"), Mesh(2, 2, True, pipeline=2))
    for number, mesh in enumerate(meshes):
        task: dict[str, Any] = {"mode": "sync", "checkpoints": place, "resume": number > 0}
        steps = {} if number == 2 else {"steps": 10 * (number + 1)}
        run(tmp_path / str(number), mesh, [{"model": "stacked", "unit": 256, **task, **steps}])
    assert_near(saved(str(tmp_path / "2" / "saved 0")), alone("sync", 2)[1])


@pytest.mark.dense
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "mesh", LONG, ids=lambda mesh: f"{mesh.data}x{mesh.tensor}x{mesh.pipeline} {mesh.schedule} {mesh.sharded}"
)
def test_every_pipeline_learns_what_one_process_learns(mesh: Mesh, tmp_path: Path, alone: Any) -> None:
    # In hybrid, each of several workers takes an update of its own.
    ways = [way for way in EVERY if mesh.data == 1 or way[1] == "sync"]
    check(mesh, [{"exchange": exchange, "mode": mode} for exchange, mode in ways], tmp_path, alone)
