"""What is said of a mesh before workers start; what cannot be divided is in `test_mesh.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from satrap.config import load
from satrap.errors import ConfigError, OwnCodeError
from satrap.launch import mesh_summary
from satrap.launch.mesh_summary import described_mesh
from tests.launch.runs import make_recipe

WUKONG = "{name: wukong, layers: 2, hidden: [16]}"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ([], ""),
        (["cluster.workers=2"], ""),
        (["dense.mesh={data: 2, tensor: 2}"], "mesh: 2 data x 2 tensor = 4 workers; sharded layers: "),
        (["dense.sharded=true", "cluster.workers=2"], "mesh: 2 data = 2 workers, weights in 2 parts"),
        (
            ["dense.mesh={pipeline: 2}", "model.hidden=[16, 6]"],
            "mesh: 1 data x 2 pipeline = 2 workers; stages: deep.0 (160) | deep.2 head (109)",
        ),
        (
            ["dense.mesh={pipeline: 2}", f"model={WUKONG}"],
            "mesh: 1 data x 2 pipeline = 2 workers; stages: bottom layers.0 (6,372) | layers.1 top.0 head "
            "(23,977)",
        ),
    ],
)
def test_the_mesh_is_said_in_words(tmp_path: Path, settings: list[str], words: str) -> None:
    recipe = load(make_recipe(tmp_path), ["cluster.exchange=collective", *settings])
    said = described_mesh(recipe, recipe.schema())
    assert said.startswith(words) if words.endswith(" ") else said == words


OWN = """
from torch import nn

class Net(nn.Module):
    def __init__(self, schema):
        super().__init__()
        self.first, self.last = nn.Linear(5, 4), nn.Linear(3, 1)

    def chain(self):
        return [lambda batch: batch.flat(), self.first, self.last]

    def forward(self, batch):
        return self.last(self.first(batch.flat()))
"""


def test_an_error_in_a_chain_of_the_users_own_names_its_line(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        OWN.replace("[lambda batch: batch.flat(),", "[lambda batch: batch.nothing,")
    )
    settings = ["cluster.exchange=collective", "dense.mesh={pipeline: 2}", "model={class: 'net.py:Net'}"]
    recipe = load(make_recipe(tmp_path), settings)
    with pytest.raises(OwnCodeError, match="has no attribute 'nothing'") as caught:
        described_mesh(recipe, recipe.schema())
    assert "net.py:10" in caught.value.where


def test_stages_of_a_large_network_are_not_tried_out_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mesh_summary, "MOST_PARAMETERS", 268)  # this recipe's network has one more
    settings = ["cluster.exchange=collective", "dense.mesh={pipeline: 2}", "model.hidden=[16, 6]"]
    recipe = load(make_recipe(tmp_path), settings)
    assert described_mesh(recipe, recipe.schema()) == "mesh: 1 data x 2 pipeline = 2 workers"
    short = load(make_recipe(tmp_path), [*settings[:1], "dense.mesh={pipeline: 4}", settings[2]])
    with pytest.raises(ConfigError, match="DNN has 3 layers to split at"):
        described_mesh(short, short.schema())
