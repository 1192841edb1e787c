"""What is said of a mesh before workers start; what cannot be divided is in `test_mesh.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from satrap.config import load
from satrap.launch.described import described_mesh
from tests.launch.runs import make_recipe

WUKONG = "{name: wukong, layers: 2, hidden: [16]}"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ([], ""),
        (["cluster.workers=2"], ""),
        (["dense.mesh={data: 2, tensor: 2}"], "mesh: 2 data x 2 tensor = 4 workers; divided layers: "),
        (["dense.sharded=true", "cluster.workers=2"], "mesh: 2 data = 2 workers, weights in 2 parts"),
        (
            ["dense.mesh={pipeline: 2}", "model.hidden=[16, 6]"],
            "mesh: 1 data x 2 pipeline = 2 workers; stages: deep.0 (160) | deep.2 head (109)",
        ),
        (
            ["dense.mesh={pipeline: 2}", f"model={WUKONG}"],
            "mesh: 1 data x 2 pipeline = 2 workers; "
            "stages: bottom layers.0 (6,372) | layers.1 top.0 head (23,977)",
        ),
    ],
)
def test_the_mesh_is_said_in_words(tmp_path: Path, settings: list[str], words: str) -> None:
    recipe = load(make_recipe(tmp_path), ["cluster.exchange=collective", *settings])
    said = described_mesh(recipe, recipe.schema())
    assert said.startswith(words) if words.endswith(" ") else said == words
