"""Offloads that could not do what they say are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.config.recipes import loaded, refused

SERVERS = "cluster.exchange=servers"


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        (
            ["{optimizer: disk, folder: /ssd}", "training.mode=async"],
            "cannot be combined with training.mode: async",
        ),
        (["{optimizer: cpu}"], "with optimizer: cpu has no effect on training.device: cpu"),
        (["{optimizer: disk}"], "with optimizer: disk needs a folder"),
        (
            ["{optimizer: cpu, folder: /ssd}", "training.device=cuda"],
            "with optimizer: cpu takes no folder",
        ),
    ],
)
def test_an_offload_that_cannot_be(tmp_path: Path, settings: list[str], what: str) -> None:
    first, *others = settings
    error = refused(tmp_path, f"dense.offload={first}", *others)
    assert error.what == f"dense.offload {what}"
    assert error.where == "--set dense.offload"


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        (["dense.mesh.tensor=2", SERVERS], "dense.mesh.tensor"),
        (["dense.mesh.pipeline=2", SERVERS], "dense.mesh.pipeline"),
        (["dense.sharded=true", "cluster.workers=2", SERVERS], "dense.sharded"),
        (["dense.compile=true"], "dense.compile"),
        (["cluster.workers=2", "training.device=cuda", SERVERS], "several workers on training.device: cuda"),
        (
            ["dense.precision=bfloat16", "training.device=cuda"],
            "dense.precision: bfloat16 on training.device: cuda",
        ),
        (
            ["dense.checkpoint_activations=true", "training.device=cuda"],
            "dense.checkpoint_activations on training.device: cuda",
        ),
    ],
)
def test_what_does_not_go_with_weights_off_the_device(tmp_path: Path, settings: list[str], what: str) -> None:
    error = refused(tmp_path, "dense.offload={optimizer: disk, folder: /d, weights: true}", *settings)
    assert error.what == f"dense.offload with weights: true cannot be combined with {what}"
    assert error.where == "--set dense.offload"


def test_what_can_be(tmp_path: Path) -> None:
    assert loaded(tmp_path).sections.dense.offload is None
    loaded(tmp_path, "dense.offload={optimizer: disk, folder: /ssd}")
    loaded(tmp_path, "dense.offload={optimizer: cpu}", "training.device=cuda")
    weights = "dense.offload={optimizer: disk, folder: /ssd, weights: true}"
    loaded(tmp_path, weights, "cluster.workers=2", SERVERS, "dense.precision=bfloat16")
    loaded(tmp_path, weights, "dense.checkpoint_activations=true", "dense.sharded=true")
    loaded(tmp_path, "dense.offload={optimizer: cpu, weights: true}", "training.device=cuda")
