from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from satrap.config import load
from satrap.errors import ConfigError
from satrap.tools.plan.recipe_dense import plan_network
from tests.launch.runs import RECIPE, make_recipe

HUGE = RECIPE.replace("hidden: [8]", "hidden: [65536, 65536]").replace("batch_size: 100", "batch_size: 8")
SERVERS = "cluster.exchange=servers"


def test_a_network_that_no_machine_here_could_hold(tmp_path: Path) -> None:
    recipe = load(make_recipe(tmp_path, HUGE))
    numbers = (9 + 1) * 65536 + (65536 + 1) * 65536 + 65536 + 1
    plan = plan_network(recipe, 8, 24 << 30)
    assert plan is not None
    assert plan.given == ()
    [copies] = [one.need for one in plan.tried if str(one.mesh) == "8 data = 8 workers"]
    assert copies is not None
    assert copies.memory["parameters"] == 4 * numbers
    assert copies.memory["optimizer"] == 8 * numbers  # of Adam
    assert plan.chosen is not None
    assert plan.chosen.peak <= 24 << 30 < copies.peak


def test_what_the_recipe_says_is_planned(tmp_path: Path) -> None:
    path = make_recipe(tmp_path)
    assert plan_network(load(path)) is None
    given = [SERVERS, "dense.mesh.data=2", "dense.microbatches=4", "dense.checkpoint_activations=true"]
    given += ["data.shuffle=false"]
    plan = plan_network(load(path, [*given, "cluster.wire.dense=bfloat16", "dense.optimizer.name=sgd"]))
    assert plan is not None
    network = plan.network
    assert (network.microbatches, network.checkpoint_activations, network.number_bytes) == (4, True, 2)
    assert (network.compression, network.offload) == (None, "")
    assert plan.given[0].memory.get("optimizer", 0) == 0
    given = [
        *given,
        "cluster.wire={dense: powersgd, dense_rank: 2}",
        "dense.offload={optimizer: disk, folder: /d}",
    ]
    away = plan_network(load(path, given))
    assert away is not None
    assert away.network.compression is not None
    assert away.network.compression.rank == 2
    assert (away.network.offload, away.network.weights_off) == ("disk", False)
    assert away.given[0].memory.get("optimizer", 0) == 0
    off = plan_network(load(path, [*given, "dense.offload.weights=true"]))
    assert off is not None
    assert off.network.weights_off
    assert off.given[0].memory.get("parameters", 0) == 0
    rows = pd.read_csv(tmp_path / "rows.csv")
    batch = rows[rows.index % 10 < 8].iloc[:100]  # without validation and test rows
    assert network.inputs.rows == ((batch["user"].nunique() + batch["item"].nunique(), 4),)
    staged = plan_network(load(path, [SERVERS, "dense.mesh.pipeline=2", "dense.microbatches=4"]))
    assert staged is not None
    assert [need.stage for need in staged.given] == [0, 1]
    assert (staged.network.microbatches, staged.given[0].mesh.parts) == (1, 4)


def test_what_cannot_be_planned(tmp_path: Path) -> None:
    path = make_recipe(tmp_path)
    with pytest.raises(ConfigError, match="mode async"):
        plan_network(load(path, ["training.mode=async"]), 2, 1 << 30)
    with pytest.raises(ConfigError, match="no linear layers"):
        plan_network(load(path, [SERVERS, "dense.mesh.tensor=3"]))


def test_a_network_of_your_own_that_looks_at_numbers(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, schema):
        super().__init__()
        self.layer = nn.Linear(9, 1)

    def forward(self, batch):
        x = batch.flat()
        return self.layer(x if float(x.sum()) > 0 else -x)
"""
    )
    own = RECIPE.replace("{name: dnn, hidden: [8]}", '{class: "mine.py:Net"}')
    with pytest.raises(ConfigError, match="cannot run on fake tensors") as error:
        plan_network(load(make_recipe(tmp_path, own)), 2, 1 << 30)
    assert "mine.py:13, in forward" in str(error.value)
