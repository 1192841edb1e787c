from __future__ import annotations

import pytest

from satrap.dense import Mesh
from satrap.errors import ConfigError
from satrap.plan.dense.pipeline import needs_of_stages
from tests.plan.dense.measured import Tower, network

WEIGHTS = sum(p.numel() for p in Tower().parameters())


def test_stages_need_their_weights_and_parts_in_flight() -> None:
    """`tests/cluster/test_dense_plan.py` compares with what is measured."""
    net = network()
    early = needs_of_stages(net, Mesh(2, pipeline=2))
    late = needs_of_stages(net, Mesh(2, pipeline=2, schedule="gpipe"))
    assert sum(need.memory["parameters"] for need in early) == 4 * WEIGHTS
    assert [need.stage for need in early] == [0, 1]
    # gpipe keeps all 8 parts, 1f1b as many as stages follow.
    of = [[need.memory["activations"] for need in needs] for needs in (early, late)]
    assert of[1][0] > 2 * of[0][0]
    assert of[1][1] > 4 * of[0][1]
    boundary = 2048 * 256 * 4
    assert early[0].sent["activations"] == boundary
    assert early[0].sent["gradients"] + early[1].sent["gradients"] == 4 * WEIGHTS
    assert early[0].bubble == 1 / 9


def test_stages_with_divided_layers_need_less_and_send_more() -> None:
    whole, cut = (needs_of_stages(network(), Mesh(tensor=t, pipeline=2))[1] for t in (1, 2))
    assert cut.memory["parameters"] < 0.6 * whole.memory["parameters"]
    assert cut.sent["activations"] > whole.sent["activations"]


def test_more_stages_than_layers() -> None:
    with pytest.raises(ConfigError, match="layers to cut at"):
        needs_of_stages(network(), Mesh(pipeline=16))
