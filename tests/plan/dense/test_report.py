from __future__ import annotations

from satrap.dense import Mesh
from satrap.plan.dense import plan_dense
from satrap.plan.dense.meshes import needs
from satrap.plan.dense.report import report
from tests.plan.dense.measured import network


def test_a_mesh_of_stages_and_what_does_not_fit() -> None:
    net, stages = network(), Mesh(pipeline=2)
    enough = max(need.peak for need in needs(net, stages))
    text = report(plan_dense(net, mesh=stages, devices=2, memory=enough))
    lines = text.splitlines()
    assert lines[0] == "dense network, batches of 2,048 samples per share"
    assert lines[2] == "mesh of the recipe: 1 data x 2 pipeline = 2 workers"
    assert [line.split()[0] for line in lines[4:6]] == ["0", "1"]
    assert "stages idle for 11% of a step" in lines
    assert sum("needs " in line and " more" in line for line in lines) >= 3
    assert sum(line.endswith("PROPOSED") for line in lines) == 1
    assert "no mesh without stages fits" in lines
    nothing = report(plan_dense(net, mesh=Mesh(2), memory=1 << 20))
    assert "DOES NOT FIT: no mesh here fits devices with 1.0 MiB" in nothing
    assert "what to do: use devices with" in nothing
