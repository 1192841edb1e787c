"""Offloads that could not do what they say are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.config.recipes import loaded, refused


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        (["{optimizer: disk, folder: /ssd}", "training.mode=async"], "does not go with training.mode: async"),
        (["{optimizer: cpu}"], "with optimizer: cpu has no effect on training.device: cpu"),
        (["{optimizer: disk}"], "with optimizer: disk needs a folder"),
        (
            ["{optimizer: cpu, folder: /ssd}", "training.device=cuda"],
            "with optimizer: cpu needs no folder",
        ),
    ],
)
def test_an_offload_that_cannot_be(tmp_path: Path, settings: list[str], what: str) -> None:
    first, *others = settings
    error = refused(tmp_path, f"dense.offload={first}", *others)
    assert error.what == f"dense.offload {what}"
    assert error.where == "--set dense.offload"


def test_what_can_be(tmp_path: Path) -> None:
    assert loaded(tmp_path).sections.dense.offload is None
    loaded(tmp_path, "dense.offload={optimizer: disk, folder: /ssd}")
    loaded(tmp_path, "dense.offload={optimizer: cpu}", "training.device=cuda")
