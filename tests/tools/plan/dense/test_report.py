from __future__ import annotations

from satrap.dense import Mesh
from satrap.plan.result import columns
from satrap.tools.plan.dense import DensePlan, Need, Speed, plan_dense
from satrap.tools.plan.dense.meshes import Tried, needs
from satrap.tools.plan.dense.report import KNOWN, NOTES, UNKNOWN, report
from tests.tools.plan.dense.measured import network


def test_a_mesh_of_stages_and_what_does_not_fit() -> None:
    net, stages = network(), Mesh(pipeline=2)
    enough = max(need.peak for need in needs(net, stages))
    text = report(plan_dense(net, mesh=stages, devices=2, memory=enough))
    lines = text.splitlines()
    assert lines[0] == "dense network, batches of 2,048 samples per data shard"
    assert lines[2] == "mesh of the recipe: 1 data x 2 pipeline = 2 workers"
    assert [line.split()[0] for line in lines[4:6]] == ["0", "1"]
    assert "stages are idle for 11% of a step" in lines
    assert sum("needs " in line and " more" in line for line in lines) >= 3
    assert sum(line.endswith("PROPOSED") for line in lines) == 1
    assert "no mesh without stages fits" in lines
    nothing = report(plan_dense(net, mesh=Mesh(2), memory=1 << 20))
    assert "DOES NOT FIT: none of these meshes fits devices with 1.0 MiB" in nothing
    assert "what to do: use devices with" in nothing


def test_the_whole_text() -> None:
    stages = Mesh(pipeline=2)
    given = [
        Need(stages, {"parameters": 2048, "rows": 1024 * one}, {"rows": 2.0, "gradients": 1022.0}, one, 8e11)
        for one in (0, 1)
    ]
    copies = Need(Mesh(2), {"buffers": 1 << 20}, {"gradients": 20480.0})
    tried = (
        Tried(Mesh(2), copies, "needs 1 B more"),
        Tried(Mesh(1, 2), None, "no"),
        Tried(Mesh(2, sharded=True), copies, ""),
        Tried(stages, given[1], ""),
    )
    head = ["stage", "parameters", "gradients", "optimizer", "activations", "buffers", "rows", "peak", "sent"]
    none = ["0 B"] * 4
    first = columns(
        [
            head,
            ["0", "2.0 KiB", *none, "0 B", "2.0 KiB", "1.0 KiB"],
            ["1", "2.0 KiB", *none, "1.0 KiB", "3.0 KiB", "1.0 KiB"],
        ]
    )
    # 20 KiB from each of 2 processes for 2 x 2,048 samples; 1 KiB from each of 2 for 2,048
    second = columns(
        [
            ["mesh", "memory", "sent", "sent/sample", "idle", ""],
            [str(Mesh(2)), "1.0 MiB", "20 KiB", "10 B", "0%", "needs 1 B more"],
            [str(Mesh(1, 2)), "", "", "", "", "no"],
            [str(Mesh(2, sharded=True)), "1.0 MiB", "20 KiB", "10 B", "0%", "fits"],
            [str(stages), "3.0 KiB", "1.0 KiB", "1 B", "11%", "PROPOSED"],
        ]
    )
    notes = ["", *(f"  {note}" for note in (*NOTES, UNKNOWN.format(flop="1.6 TFLOP")))]
    start = ["dense network, batches of 2,048 samples per data shard", ""]
    mesh = "mesh of the recipe: 1 data x 2 pipeline = 2 workers"
    best = "proposed: 1 data x 2 pipeline = 2 workers, which fits and sends fewest bytes per sample"
    plan = DensePlan(network(), 1 << 20, tuple(given), tried, given[1])
    assert report(plan).splitlines() == [
        *start,
        mesh,
        *first,
        "stages are idle for 11% of a step",
        "",
        *second,
        "",
        best,
        "no mesh without stages fits",
        *notes,
    ]
    one = DensePlan(network(), 1 << 20, (given[0],), (), copies)
    said = report(one).splitlines()
    assert [line.split() for line in said[2:6]] == [mesh.split(), head, first[1].split(), []]
    assert said[6].startswith("proposed: 2 data = 2 workers, which fits and sends fewest")
    assert "no mesh without stages" not in report(one)
    untried = DensePlan(network(), None, (given[0],))
    assert "DOES NOT FIT" not in report(untried)
    said = report(DensePlan(network(), 2047, (given[0],), change="more")).splitlines()
    assert said[-5:-4] == ["what to do: use more"]
    assert said[-6] == "DOES NOT FIT: none of these meshes fits devices with 2.0 KiB"


def test_times_by_the_speed_of_devices() -> None:
    stages, speed = Mesh(pipeline=2), Speed(1e12, 2048.0)
    given = [Need(stages, {}, {"rows": 1024.0}, one, flop) for one, flop in ((0, 8e10), (1, 8e11))]
    tried = (Tried(Mesh(2), given[0], "", 0.25), Tried(Mesh(1, 2), None, "no"))
    lines = report(DensePlan(network(), 1 << 20, tuple(given), tried, given[0], speed=speed)).splitlines()
    # 0.8 s of work, idle for a ninth of the step, and half a second for what is sent
    assert "a step takes 1.4 s at the given speeds" in lines
    assert [line.split() for line in lines if line.startswith("mesh ")][1][-3:] == [
        "idle",
        "step",
        "samples/s",
    ]
    assert next(line for line in lines if line.endswith("PROPOSED")).split()[-3:] == [
        "ms",
        "16,384",
        "PROPOSED",
    ]
    assert " 250 ms " in next(line for line in lines if line.endswith("PROPOSED"))
    assert "proposed: 1 data x 2 pipeline = 2 workers, which fits and trains most samples per second" in lines
    assert "no mesh without stages fits" not in lines
    assert lines[-1] == "  " + KNOWN.format(flops="1 TFLOP", bandwidth="2.0 KiB")
    small = DensePlan(network(), None, (Need(Mesh(1, 2), {}, {}, 0, 1.25e9),))
    assert report(small).splitlines()[-1] == "  " + UNKNOWN.format(flop="2.5 GFLOP")
    small = DensePlan(network(), None, (Need(Mesh(), {}, {}, 0, 9.99e8),))
    assert "the 999 MFLOP of" in report(small)
