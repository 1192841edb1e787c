from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.testing._internal.distributed.fake_pg import FakeStore

from satrap.dense import Mesh
from satrap.dense.parallel.pipeline_runner import _SCHEDULES
from satrap.errors import ConfigError
from satrap.settings.mesh import INTERLEAVED
from satrap.tools.plan.dense.pipeline import needs_of_stages, order
from tests.tools.plan.dense.measured import Tower, network

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
    assert early[0].sent["rows"] == early[1].sent["rows"] == net.inputs.row_bytes / 2


def test_stages_in_16_bits_send_half_and_recomputed_ones_keep_less() -> None:
    plain, short, again = (
        needs_of_stages(network(**options), Mesh(pipeline=2, schedule="gpipe"))
        for options in ({}, {"precision": "bfloat16"}, {"checkpoint_activations": True})
    )
    for stage in range(2):
        assert short[stage].sent["activations"] == plain[stage].sent["activations"] / 2
        assert again[stage].sent == plain[stage].sent
        assert again[stage].memory["activations"] < 0.75 * plain[stage].memory["activations"]
        assert plain[stage].flop < again[stage].flop < 1.4 * plain[stage].flop


def test_stages_with_divided_layers_need_less_and_send_more() -> None:
    whole, cut = (needs_of_stages(network(), Mesh(tensor=t, pipeline=2))[1] for t in (1, 2))
    assert cut.memory["parameters"] < 0.6 * whole.memory["parameters"]
    assert cut.sent["activations"] > whole.sent["activations"]


@pytest.fixture
def alone() -> Iterator[None]:
    """A process of four that do not exist."""
    c10d: Any = dist
    c10d.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    yield
    c10d.destroy_process_group()


@pytest.mark.parametrize("schedule", INTERLEAVED)
@pytest.mark.parametrize("per_rank", [2, 3])
def test_several_stages_are_computed_in_the_order_of_pytorch(
    schedule: Any, per_rank: int, alone: None
) -> None:
    """PyTorch also refuses an order in which a stage would wait for ever."""
    for parts in range(1, 17):
        try:
            mesh = Mesh(pipeline=4, schedule=schedule, stages_per_rank=per_rank, microbatches=parts)
        except ConfigError:
            assert schedule == "interleaved_1f1b"
            assert parts % (parts // 4)
            continue
        stages = [
            PipelineStage(nn.Identity(), n, mesh.stage_count, torch.device("cpu")) for n in mesh.numbers(0)
        ]
        made = _SCHEDULES[schedule](stages, parts, loss_fn=nn.MSELoss())
        for process, actions in made.pipeline_order.items():
            expected = [
                (one.stage_index, one.microbatch_index, one.computation_type.value == "F")
                for one in actions
                if one is not None
            ]
            assert list(order(mesh, process)) == expected


def test_several_stages_idle_less_and_keep_more() -> None:
    net = network()
    once, more = (
        needs_of_stages(net, Mesh(pipeline=2, **how))
        for how in ({}, {"schedule": "interleaved_1f1b", "stages_per_rank": 3})
    )
    assert (once[0].bubble, more[0].bubble) == (1 / 9, 1 / 25)
    assert sum(need.memory["parameters"] for need in more) == 4 * WEIGHTS
    assert more[0].memory["activations"] > 1.2 * once[0].memory["activations"]
    boundary = 2048 * 256 * 4
    assert [need.sent["activations"] for need in more] == [5 * boundary] * 2


def test_more_stages_than_layers() -> None:
    with pytest.raises(ConfigError, match="layers to split at"):
        needs_of_stages(network(), Mesh(pipeline=16))
