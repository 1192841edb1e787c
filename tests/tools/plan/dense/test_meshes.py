from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from satrap.dense import Mesh
from satrap.tools.plan.dense import DensePlan, Need, Speed, plan_dense
from satrap.tools.plan.dense.meshes import Tried, _changes, keys, meshes, needs, per_sample
from tests.tools.plan.dense.measured import BLOCKS, SIZE, WIDTH, network


@cache
def planned(memory: int) -> DensePlan:
    return plan_dense(network(), devices=2, memory=memory)


def test_meshes_of_four_devices() -> None:
    found = [str(mesh) for mesh in meshes(4)]
    assert len(found) == len(set(found)) == 12
    assert all(mesh.size == 4 for mesh in meshes(4))
    assert Mesh(4, sharded=True, shard_size=2) in list(meshes(4))
    assert len(list(meshes(4, microbatches=2))) == 14
    assert [str(mesh) for mesh in meshes(1)] == ["1 data = 1 workers"]
    assert max(mesh.tensor for mesh in meshes(64)) == 8


def test_meshes_of_four_devices_in_order() -> None:
    plain = [
        Mesh(4),
        Mesh(4, sharded="gradients"),
        Mesh(4, sharded=True, shard_size=2),
        Mesh(4, sharded=True),
    ]
    plain += [Mesh(2, 2), Mesh(2, 2, "gradients"), Mesh(2, 2, True), Mesh(1, 4)]
    stages = [
        Mesh(2, pipeline=2),
        Mesh(2, sharded=True, pipeline=2),
        Mesh(1, 2, pipeline=2),
        Mesh(pipeline=4),
    ]
    assert list(meshes(4)) == [*plain, *stages]
    several = [mesh for mesh in meshes(4, interleaved=True) if mesh.pipeline > 1]
    assert several[::2] == stages
    assert several[1::2] == [replace(mesh, schedule="interleaved_1f1b") for mesh in stages]
    parts = [mesh for mesh in meshes(4, microbatches=2) if mesh.sharded == "optimizer"]
    assert parts == [Mesh(4, sharded="optimizer"), Mesh(2, 2, "optimizer")]
    assert [mesh.tensor for mesh in meshes(9) if mesh.sharded is False and mesh.pipeline == 1] == [1, 3]


def test_meshes_as_keys_of_a_recipe() -> None:
    assert keys(Mesh()) == {"mesh": {"data": 1}}
    assert keys(Mesh(4, 2, True, 2)) == {
        "mesh": {"data": 4, "tensor": 2},
        "sharded": True,
        "shard_size": 2,
    }
    assert keys(Mesh(2, pipeline=2, microbatches=3)) == {
        "mesh": {"data": 2, "pipeline": 2},
        "microbatches": 3,
    }
    assert keys(Mesh(pipeline=2, schedule="interleaved_1f1b"))["schedule"] == "interleaved_1f1b"


def test_operations_of_a_step() -> None:
    whole = 6 * SIZE * (25 * WIDTH + BLOCKS * WIDTH**2 + WIDTH)  # Tower, two for each product of numbers
    assert [needs(network(**how), Mesh())[0].flop for how in ({}, {"microbatches": 4})] == [whole, whole]
    assert needs(network(), Mesh(2, sharded=True))[0].flop == whole
    assert needs(network(), Mesh(1, 2))[0].flop == pytest.approx(whole / 2, rel=0.05)
    for schedule in ("1f1b", "interleaved_1f1b"):
        assert sum(need.flop for need in needs(network(), Mesh(pipeline=2, schedule=schedule))) == whole  # type: ignore[arg-type]
    again = needs(network(checkpoint_activations=True), Mesh())[0].flop
    assert again == pytest.approx(4 / 3 * whole, rel=0.02)


def test_the_mesh_that_trains_most_samples_per_second() -> None:
    need = Need(Mesh(pipeline=2), {}, {"rows": 100.0}, 0, 8e9)
    assert need.seconds(Speed(1e9, 50.0)) == pytest.approx(8 * 9 / 8 + 2)  # one of nine parts of it is idle
    assert need.to_dict()["flop"] == 8e9
    enough = 1 << 40
    slow, fast = (plan_dense(network(), devices=2, memory=enough, speed=Speed(1e9, b)) for b in (1e5, 1e15))
    assert fast.chosen is not None
    assert fast.chosen.mesh == Mesh(2)  # neither idles nor computes anything twice
    for plan in (slow, fast):
        best = max(one.mesh.data / one.seconds for one in plan.tried if one.seconds is not None)
        [own] = [one for one in plan.tried if one.need is plan.chosen]
        assert own.seconds is not None
        assert own.mesh.data / own.seconds == best
        assert plan.to_dict()["tried"][0]["seconds"] == plan.tried[0].seconds
    given = plan_dense(network(), mesh=Mesh(pipeline=2), speed=Speed(1e9, 1e9))
    seconds = [one["seconds"] for one in given.to_dict()["mesh"]]
    assert seconds == [one.seconds(Speed(1e9, 1e9)) for one in given.given]
    assert "seconds" not in plan_dense(network(), mesh=Mesh(2)).to_dict()["mesh"][0]


def test_changes_that_are_tried() -> None:
    net = network()
    found = [change.words for change in _changes(net, Mesh(2))]
    once = "dense.checkpoint_activations: true"
    parts = [f"dense.microbatches: {count}" for count in (2, 4, 8, 16, 32)]
    assert found[:11] == [*parts, once, *(f"{once} and {part}" for part in parts)]
    assert [words.split()[0] for words in found[11:]] == ["4", "8", "16", "32", "64", "128", "256"]
    assert all(words.split()[1] == "devices" for words in found[11:])
    last = list(_changes(net, Mesh(1, 2)))[-1]
    assert (last.mesh, last.network) == (Mesh(128, 2, True), net)
    some = replace(net, microbatches=4, inputs=replace(net.inputs, size=16))
    assert [change.network.microbatches for change in _changes(some, Mesh(2))][:3] == [8, 16, 4]
    assert [change.words for change in _changes(net, Mesh(pipeline=2))] == [once]


def test_a_plan_fits_to_the_last_byte() -> None:
    need = Need(Mesh(2, 2), {"rows": 7}, {"gradients": 100.0})
    fits = [DensePlan(network(), memory, (need,)).fits for memory in (None, 7, 6)]
    assert fits == [True, True, False]
    tried = (Tried(Mesh(2, 2), need, ""),)
    assert [DensePlan(network(), 6, tried=tried, chosen=one).fits for one in (None, need)] == [False, True]
    assert per_sample(need, network()) == 100 * 4 / (2 * 2048)
    plain = DensePlan(network(), 7, (need,), (*tried, Tried(Mesh(4), None, "no")), need, "x").to_dict()
    own, known = need.to_dict(), {"mesh": {"data": 2, "tensor": 2}}
    assert plain == {
        "batch_size": 2048,
        "device_memory": 7,
        "fits": True,
        "mesh": [own],
        "proposed": known,
        "tried": [
            {"mesh": known, "why_not": "", **own, "bytes_per_sample": 400 / 4096},
            {"mesh": {"mesh": {"data": 4}}, "why_not": "no"},
        ],
        "change": "x",
    }
    assert (own["sent"], own["sent_bytes"], own["stage"]) == ({"gradients": 100}, 100, 0)


def test_the_mesh_that_fits_and_sends_least() -> None:
    plan = planned(1 << 40)
    assert plan.chosen is not None
    assert plan.fits
    copies = [one.need for one in plan.tried if one.need is not None and one.mesh.pipeline == 1]
    assert per_sample(plan.chosen, plan.network) == min(per_sample(need, plan.network) for need in copies)
    assert all(one.why == "" for one in plan.tried)
    smaller = planned(plan.chosen.peak - 1)
    assert smaller.chosen is not None
    assert smaller.chosen.peak < plan.chosen.peak
    assert next(one for one in smaller.tried if one.mesh == plan.chosen.mesh).why == "needs 1 B more"
    assert per_sample(smaller.chosen, plan.network) >= per_sample(plan.chosen, plan.network)


def test_stages_only_where_nothing_else_fits() -> None:
    least = {one.mesh.pipeline: one.need.peak for one in planned(1 << 40).tried if one.need is not None}
    plan = planned(least[2])
    assert plan.chosen is not None
    assert keys(plan.chosen.mesh) == {"mesh": {"data": 1, "pipeline": 2}, "microbatches": 8}


def test_nothing_fits_but_after_a_change() -> None:
    net, mesh = network(), Mesh(2)
    whole = needs(net, mesh)[0].peak
    plan = plan_dense(net, mesh=mesh, memory=whole - 1)
    assert not plan.fits
    assert plan.change.startswith("dense.microbatches: 2, or devices with ")
    assert plan_dense(replace(net, microbatches=2), mesh=mesh, memory=whole - 1).fits
    assert plan_dense(net, mesh=mesh, memory=1024).change.startswith("devices with")
    # With so few activations, only shards of weights and optimizer state make a difference.
    few = replace(net, inputs=replace(net.inputs, size=2))
    more = plan_dense(few, mesh=mesh, memory=needs(few, Mesh(4, sharded=True))[0].peak)
    assert more.change.startswith("4 devices (4 data = 4 workers, weights in 4 parts), or ")
    nothing = plan_dense(few, devices=2, memory=1 << 20)
    assert nothing.to_dict()["proposed"] is None
    assert "devices" in nothing.change


def test_what_cannot_be_is_said() -> None:
    plan = plan_dense(network(), devices=3, memory=1 << 40)
    why = {str(one.mesh): one.why for one in plan.tried}
    assert "does not divide" in why["1 data x 3 tensor = 3 workers"]
    short = plan_dense(network(precision="bfloat16"), devices=2, memory=1 << 40)
    assert short.tried[-1].mesh == Mesh(pipeline=2)
    assert short.tried[-1].why == ""
    plain = short.to_dict()
    assert plain["tried"][-1]["mesh"] == {"mesh": {"data": 1, "pipeline": 2}, "microbatches": 8}
    assert plain["tried"][0]["memory"]["peak"] > 0
