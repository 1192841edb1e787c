"""The plan of a network whose weights are elsewhere."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from satrap.dense import Mesh
from satrap.errors import ConfigError
from satrap.tools.plan.dense.copies import need_of_copy
from satrap.tools.plan.dense.meshes import needs, plan_dense
from tests.tools.plan.dense.anonymous import LAYERS, SIZE, WIDTH, network

LAYER = 4 * WIDTH * (WIDTH + 1)
WEIGHTS = LAYERS * LAYER + 4 * (27 * WIDTH + 1)
ACTIVATIONS = LAYERS * 4 * SIZE * WIDTH


@pytest.mark.cluster
@pytest.mark.parametrize(
    "options", [{}, pytest.param({"precision": "bfloat16"}, marks=pytest.mark.slow)], ids=str
)
def test_the_memory_of_a_real_process_beside_files(options: dict[str, str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.tools.plan.dense.anonymous", "weights", str(tmp_path)]
    said = subprocess.run([*command, json.dumps(options)], capture_output=True, text=True, check=True).stdout
    measured, expected = json.loads(said)
    assert expected == pytest.approx(measured, rel=0.15)


def test_files_take_no_memory() -> None:
    state, both = (need_of_copy(network(offload="disk", weights_off=off), Mesh()) for off in (False, True))
    assert state.peak > 2 * WEIGHTS  # and gradients
    assert both.peak < ACTIVATIONS + 3 * LAYER


def test_the_mean_of_copies_is_in_memory() -> None:
    one, two = (need_of_copy(network(offload="disk", weights_off=True), Mesh(n)) for n in (1, 2))
    assert two.memory["buffers"] >= WEIGHTS > one.memory.get("buffers", 0)


def test_a_device_has_a_layer_at_a_time() -> None:
    kept, streamed = (need_of_copy(network(offload="cpu", weights_off=off), Mesh()) for off in (False, True))
    assert kept.peak > 2 * WEIGHTS
    assert 0 < streamed.memory["parameters"] <= 2 * LAYER
    assert streamed.peak < ACTIVATIONS + 4 * LAYER


def test_what_does_not_go_with_it() -> None:
    for mesh, options in (
        (Mesh(2, sharded=True), {"offload": "disk"}),
        (Mesh(1, pipeline=2), {"offload": "disk"}),
        (Mesh(2), {"offload": "cpu"}),
        (Mesh(1), {"offload": "cpu", "precision": "bfloat16"}),
        (Mesh(1), {"offload": "cpu", "checkpoint_activations": True}),
    ):
        with pytest.raises(ConfigError, match="offload_weights cannot be combined with"):
            needs(network(weights_off=True, **options), mesh)  # type: ignore[arg-type]


def test_meshes_that_do_not_go_with_it_are_not_proposed() -> None:
    plan = plan_dense(network(offload="disk", weights_off=True), devices=2, memory=1 << 30)
    [why] = [one.why for one in plan.tried if one.mesh.sharded is True and one.mesh.pipeline == 1]
    assert why == "offload_weights cannot be combined with mesh.sharded"
    assert plan.chosen is not None
    assert plan.chosen.mesh == Mesh(2)
