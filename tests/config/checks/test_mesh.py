"""The number of workers follows the mesh, and some keys cannot be combined with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.config.recipes import loaded, refused

SERVERS = "cluster.exchange=servers"


@pytest.mark.parametrize(
    ("settings", "workers", "shares"),
    [
        ([], 1, 1),
        (["cluster.workers=3"], 3, 3),
        (["dense.mesh.data=4"], 4, 4),
        (["dense.mesh.data=2", "dense.mesh.tensor=2"], 4, 2),
        (["dense.mesh.tensor=2"], 2, 1),
        (["dense.mesh.data=2", "dense.mesh.pipeline=3"], 6, 2),
        (["dense.mesh.tensor=2", "cluster.workers=4"], 4, 2),
        (["dense.mesh.data=2", "dense.mesh.tensor=2", "cluster.workers=4"], 4, 2),
        (["dense.sharded=true", "cluster.workers=4", "dense.shard_size=2"], 4, 4),
    ],
)
def test_workers_follow_the_mesh(tmp_path: Path, settings: list[str], workers: int, shares: int) -> None:
    sections = loaded(tmp_path, SERVERS, *settings).sections
    assert (sections.cluster.workers, sections.shares) == (workers, shares)
    assert sections.holders == 1
    held = loaded(tmp_path, "cluster.exchange=collective", *settings).sections
    assert held.holders == shares


@pytest.mark.parametrize(
    ("mesh", "said"),
    [
        ({"data": 2, "tensor": 2}, "dense.mesh is 2 x 2 = 4"),
        ({"tensor": 2}, "dense.mesh is data x 2"),
        ({"data": 2}, "dense.mesh is 2 x 1 = 2"),
        ({"data": 2, "pipeline": 2}, "dense.mesh is 2 x 1 x 2 = 4"),
        ({"tensor": 2, "pipeline": 2}, "dense.mesh is data x 2 x 2"),
    ],
)
def test_given_another_number_it_is_an_error(tmp_path: Path, mesh: dict[str, int], said: str) -> None:
    settings = [f"dense.mesh.{key}={value}" for key, value in mesh.items()]
    error = refused(tmp_path, SERVERS, "cluster.workers=3", *settings)
    assert error.what == f"cluster.workers is 3, but {said}"
    assert error.where == "--set cluster.workers"


@pytest.mark.parametrize("mesh", ["dense.mesh.tensor=2", "dense.sharded=true", "dense.mesh.pipeline=2"])
@pytest.mark.parametrize(
    "other",
    [
        "training.mode=async",
        "cluster.wire.dense=int8",
        "cluster.wire.dense=powersgd",
        "cluster.embedding_workers=1",
    ],
)
def test_keys_that_do_not_go_with_a_divided_network(tmp_path: Path, mesh: str, other: str) -> None:
    error = refused(tmp_path, SERVERS, "cluster.workers=2", mesh, other)
    key = other.split("=")[0]
    assert error.what == f"{key} cannot be combined with {mesh.split('=')[0]}"
    assert error.where == f"--set {key}"


@pytest.mark.parametrize(
    "other",
    [
        ["cluster.loaders=1"],
        ["cluster.placements={user: replicated}"],
        ["training.mode=sync", "training.lookahead=2"],
    ],
)
def test_keys_that_do_not_go_with_tensor_alone(tmp_path: Path, other: list[str]) -> None:
    exchange = "cluster.exchange=collective" if "training.lookahead=2" in other else SERVERS
    error = refused(tmp_path, exchange, "dense.mesh.tensor=2", *other)
    assert error.what.endswith("cannot be combined with dense.mesh.tensor")


def test_the_size_of_a_shard_divides_the_copies(tmp_path: Path) -> None:
    error = refused(tmp_path, SERVERS, "cluster.workers=4", "dense.sharded=true", "dense.shard_size=3")
    assert error.what == "dense.shard_size is 3, but there are 4 copies"
    error = refused(tmp_path, SERVERS, "cluster.workers=4", "dense.shard_size=2")
    assert error.what == "dense.shard_size is 2, but dense.sharded is false"


def test_the_local_exchange_has_one_process(tmp_path: Path) -> None:
    error = refused(tmp_path, "dense.mesh.data=2")
    assert error.what == "cluster.workers is 2, but cluster.exchange is local"
    assert loaded(tmp_path, "dense.sharded=true").sections.cluster.workers == 1


@pytest.mark.parametrize("mesh", ["dense.mesh.tensor=2", "dense.mesh.pipeline=2"])
def test_divided_networks_are_not_translated(tmp_path: Path, mesh: str) -> None:
    error = refused(tmp_path, SERVERS, mesh, "dense.compile=true")
    assert error.what == f"dense.compile cannot be combined with {mesh.removesuffix('=2')}"


def test_copies_of_stages_may_share_their_weights(tmp_path: Path) -> None:
    mesh = "dense={mesh: {data: 2, tensor: 2, pipeline: 2}, sharded: true}"
    assert loaded(tmp_path, SERVERS, mesh).sections.cluster.workers == 8


@pytest.mark.parametrize("other", ["dense.precision=bfloat16", "dense.checkpoint_activations=true"])
def test_stages_compute_as_whole_networks_do(tmp_path: Path, other: str) -> None:
    assert loaded(tmp_path, SERVERS, "dense.mesh.pipeline=2", other).sections.dense.mesh.pipeline == 2


@pytest.mark.parametrize("key", ["schedule=gpipe", "stages=[head]", "stages_per_rank=2"])
def test_keys_of_a_pipeline_without_one_are_refused(tmp_path: Path, key: str) -> None:
    error = refused(tmp_path, f"dense.{key}")
    assert error.what == f"dense.{key.split('=')[0]} has no effect without dense.mesh.pipeline"


@pytest.mark.parametrize("other", ["cluster.loaders=1", "cluster.placements={user: replicated}"])
def test_what_goes_with_shared_weights_alone(tmp_path: Path, other: str) -> None:
    loaded(tmp_path, SERVERS, "cluster.workers=2", "dense.sharded=true", other)
    loaded(tmp_path, SERVERS, "cluster.workers=2", other)
