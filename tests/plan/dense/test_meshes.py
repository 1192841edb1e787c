from __future__ import annotations

from dataclasses import replace
from functools import cache

from satrap.dense import Mesh
from satrap.plan.dense import DensePlan, plan_dense
from satrap.plan.dense.meshes import keys, meshes, needs, per_sample
from tests.plan.dense.measured import network


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
    assert "float32" in short.tried[-1].why
    plain = short.to_dict()
    assert plain["tried"][-1]["mesh"] == {"mesh": {"data": 1, "pipeline": 2}, "microbatches": 8}
    assert plain["tried"][0]["memory"]["peak"] > 0
