"""Which processes have which part."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from satrap.dense import Mesh
from satrap.errors import ConfigError


@pytest.mark.parametrize(
    "mesh",
    [
        *(Mesh(4), Mesh(2, 2), Mesh(4, 2, True, 2), Mesh(6, 1, "gradients", 3), Mesh(1, 4)),
        *(Mesh(pipeline=3), Mesh(2, pipeline=2), Mesh(2, 3, pipeline=2)),
        *(Mesh(2, 2, True, pipeline=2), Mesh(4, 1, True, 2, pipeline=3)),
    ],
    ids=str,
)
def test_axes_are_those_of_a_grid(mesh: Mesh) -> None:
    shape = mesh.data // mesh.shards, mesh.shards, mesh.pipeline, mesh.tensor
    grid = np.arange(mesh.size).reshape(shape)
    for rank in range(mesh.size):
        replica, shard, stage, tensor = (int(x) for x in np.argwhere(grid == rank)[0])
        assert mesh.axes(rank) == {
            "data": grid[:, :, stage, tensor].ravel().tolist(),
            "shard": grid[replica, :, stage, tensor].tolist(),
            "replicate": grid[:, shard, stage, tensor].tolist(),
            "pipeline": grid[replica, shard, :, tensor].tolist(),
            "tensor": grid[replica, shard, stage].tolist(),
            "peers": grid[replica, shard].ravel().tolist(),
        }


def test_a_mesh_of_copies_alone_divides_nothing() -> None:
    assert Mesh().whole
    assert Mesh(3).whole
    assert Mesh(1, sharded=True).whole
    assert Mesh(4, sharded=True, shard_size=1).whole
    assert not Mesh(2, sharded=True).whole
    assert not Mesh(1, 2).whole
    assert not Mesh(pipeline=2).whole


def test_it_says_its_arithmetic() -> None:
    assert str(Mesh(2)) == "2 data = 2 workers"
    assert str(Mesh(2, 3)) == "2 data x 3 tensor = 6 workers"
    assert str(Mesh(4, 2, True, 2)) == "4 data x 2 tensor = 8 workers, weights in 2 parts"
    assert str(Mesh(2, 2, pipeline=2)) == "2 data x 2 tensor x 2 pipeline = 8 workers"
    assert str(Mesh(2, pipeline=3)) == "2 data x 3 pipeline = 6 workers"
    assert str(Mesh(2, 1, True, pipeline=2)) == "2 data x 2 pipeline = 4 workers, weights in 2 parts"
    assert str(Mesh(2, sharded="optimizer")) == "2 data = 2 workers, optimizer state in 2 parts"
    assert str(Mesh(2, sharded="gradients")) == "2 data = 2 workers, gradients in 2 parts"


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="tensor must be >= 1"):
        Mesh(1, 0)
    with pytest.raises(ConfigError, match="shard_size 3 does not divide the 4 data shares"):
        Mesh(4, sharded=True, shard_size=3)
    with pytest.raises(ConfigError, match="3 microbatches are too few for 4 stages in the schedule 1f1b"):
        Mesh(pipeline=4, microbatches=3)
    assert Mesh(pipeline=4, microbatches=3, schedule="gpipe").parts == 3
    with pytest.raises(ConfigError, match="stages has 2 names for a pipeline of 2"):
        Mesh(pipeline=2, stages=("a", "b"))


@pytest.mark.parametrize(
    ("mesh", "what"),
    [
        ({"schedule": "zbv_zero_bubble"}, "unknown pipeline schedule 'zbv_zero_bubble'"),
        ({"stages_per_rank": 2}, "schedule 1f1b does not support stages_per_rank 2"),
        (
            {"schedule": "looped_bfs", "stages_per_rank": 1},
            "schedule looped_bfs does not support stages_per_rank 1",
        ),
        (
            {"schedule": "interleaved_1f1b", "microbatches": 7},
            "7 microbatches cannot be split into 3 rounds of equal size",
        ),
        (
            {"schedule": "looped_bfs", "stages": ("a", "b", "c", "d")},
            "stages has 4 names for a pipeline of 2 with 2 stages each",
        ),
        ({"schedule": "looped_bfs", "stages_per_rank": 0}, "mesh: stages_per_rank must be >= 1, got 0"),
    ],
)
def test_pipelines_that_cannot_be_are_refused(mesh: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Mesh(**{"pipeline": 2, **mesh})
    assert caught.value.what == what


def test_processes_have_every_so_many_stages() -> None:
    assert [list(Mesh(pipeline=3, schedule="looped_bfs").numbers(n)) for n in range(3)] == [
        [0, 3],
        [1, 4],
        [2, 5],
    ]
    assert Mesh(pipeline=2, schedule="looped_bfs", stages=tuple("abcde")).per_rank == 3
    assert Mesh(pipeline=2, schedule="interleaved_1f1b", stages_per_rank=4).stage_count == 8
    assert str(Mesh(pipeline=2, schedule="looped_bfs")) == "1 data x 2 pipeline of 2 stages = 2 workers"
    assert Mesh(pipeline=2).per_rank == 1


@pytest.mark.parametrize(
    ("mesh", "shards", "regathers", "once"),
    [
        (Mesh(4), 1, False, False),
        (Mesh(4, shard_size=2), 1, False, False),
        (Mesh(4, sharded=True), 4, True, False),
        (Mesh(4, sharded=True, shard_size=2), 2, True, False),
        (Mesh(4, sharded="gradients"), 4, False, False),
        (Mesh(4, sharded="optimizer"), 4, False, True),
        (Mesh(4, sharded=True, pipeline=2), 4, False, True),
    ],
    ids=str,
)
def test_what_is_sharded_decides_when_it_is_gathered_and_reduced(
    mesh: Mesh, shards: int, regathers: bool, once: bool
) -> None:
    assert (mesh.shards, mesh.regathers, mesh.reduces_once) == (shards, regathers, once)


def test_numbers_that_are_just_possible() -> None:
    ones = dict.fromkeys(("data", "tensor", "shard_size", "pipeline", "microbatches", "stages_per_rank"), 1)
    assert Mesh(**ones).size == 1
    for name in ones:
        with pytest.raises(ConfigError, match=f"mesh: {name} must be >= 1, got 0"):
            Mesh(**{**ones, name: 0})
    assert [Mesh(pipeline=n).parts for n in (1, 2, 3)] == [4, 8, 12]
    assert Mesh(pipeline=4, microbatches=4).parts == 4
    possible = []
    for count in range(1, 10):
        with suppress(ConfigError):
            possible.append(Mesh(pipeline=2, schedule="interleaved_1f1b", microbatches=count).parts)
    assert possible == [1, 2, 3, 4, 6, 8]  # of 5, 7 and 9, rounds would not be equal
