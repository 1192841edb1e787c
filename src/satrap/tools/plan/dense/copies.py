"""Needs of a process with a replica of the network, or with a shard of each layer."""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from satrap.dense.comm.compressed_gradients import kept_bytes, sent_bytes
from satrap.dense.compute.precision import computed
from satrap.dense.memory.activation_checkpoint import checkpoint_activations
from satrap.dense.parallel.tensor_plan import tensor_plan
from satrap.settings.mesh import Mesh
from satrap.tools.plan.dense.layers import cut_layers
from satrap.tools.plan.dense.live import Live
from satrap.tools.plan.dense.network import (
    Need,
    NetworkSpec,
    OptimizerCosts,
    all_reduce,
    largest_layer,
    size_of,
)
from satrap.tools.plan.dense.offload import leave_weights
from satrap.tools.plan.dense.sharding import Sharding, hold_weights
from satrap.train.step.loss import as_mean
from satrap.train.step.split_batch import check_parts


def need_of_copy(network: NetworkSpec, mesh: Mesh) -> Need:
    """Return the needs of the first process of a mesh without stages.

    The network runs forward and backward on a fake batch, so all shapes are real; the bytes of sharding, sums
    and the optimizer are counted at their place in the step.

    Raises:
        ConfigError: the network does not support the mesh, see `tensor_plan`, or its microbatches.
    """
    rates = OptimizerCosts.of(network.optimizer).away(network.offload)
    with FakeTensorMode():
        model, live, sums = network.make(), Live(), list[int]()
        whole = set(model.parameters())
        largest = largest_layer(model)
        cut_layers(model, tensor_plan(model, mesh.tensor), mesh.tensor, sums.append)
        check_parts(model, network.microbatches)
        if network.checkpoint_activations:
            checkpoint_activations(model)
        live.know([*model.parameters(), *model.buffers()])
        sharding = Sharding(model, mesh, live) if mesh.shards > 1 else None
        live.hold("parameters", sum(map(size_of, model.buffers())))
        trained = _weights(network, model, mesh, live)
        if not mesh.whole:
            live.begin(largest)
        live.hold("optimizer", round(rates.state * sum(trained.values()) / 4))
        shapes = [parameter.shape for parameter in trained]
        if network.compression is not None and mesh.whole and mesh.data > 1:
            live.hold("buffers", kept_bytes(network.compression, shapes))
        rows = _passes(network, model, live, sharding)
        averaged = _averaged(trained, whole, mesh)
        for count in averaged.values():
            live.hold("buffers", count)
            live.hold("buffers", 0 if network.weights_off else -count)  # replaces gradients in files
        live.hold("buffers", round(rates.beside * max(trained.values(), default=0) / 4))
        del rows  # kept alive up to here
    sent = {"gradients": sum(all_reduce(count, group) for group, count in averaged.items())}
    if mesh.whole:
        sent["gradients"] *= network.number_bytes / 4
        if (compression := network.compression) is not None and mesh.data > 1:
            sent["gradients"] = sent_bytes(compression, shapes, mesh.data)
    times = network.microbatches / _computed(network)
    if sharding is not None:
        sent["weights"], gradients = sharding.sent(times)
        sent["gradients"] += gradients
    if mesh.tensor > 1:
        sent["activations"] = times * all_reduce(sum(sums), mesh.tensor)
        sent["rows"] = network.inputs.row_bytes * (mesh.tensor - 1) / mesh.tensor
    return Need(mesh, dict(live.most), sent, flop=times * live.flop)


def _weights(network: NetworkSpec, model: nn.Module, mesh: Mesh, live: Live) -> dict[nn.Parameter, int]:
    if network.weights_off:
        return leave_weights(model, live, stream=network.offload == "cpu")
    return hold_weights(model.parameters(), mesh, live)


def _passes(network: NetworkSpec, model: nn.Module, live: Live, sharding: Sharding | None) -> list[Tensor]:
    """Run forward and backward passes of the first parts of a batch; return the batch's rows."""
    size = -(-network.inputs.size // network.microbatches)
    with live:
        leaves = network.inputs.leaves()
        for leaf in leaves:
            live.call(leaf, "rows")
            live.follow(leaf, "rows")
        for last in [False] * (_computed(network) - 1) + [True]:
            if sharding is not None:
                sharding.begin()
            loss = _loss(network, model, leaves, size)
            if sharding is not None:
                sharding.turn()
            loss.backward()  # type: ignore[no-untyped-call]
            if sharding is not None:
                sharding.end(last=last)
    return leaves


def _computed(network: NetworkSpec) -> int:
    """Return the number of parts to compute; later parts equal the second, which accumulates gradients."""
    return min(network.microbatches, 2)


def _loss(network: NetworkSpec, model: nn.Module, leaves: list[Tensor], size: int) -> Tensor:
    batch = network.inputs.batch(leaves, size)
    logits = computed(lambda: model(batch), network.precision, torch.device("cpu"))
    return as_mean(network.loss(logits, batch))


def _averaged(trained: dict[nn.Parameter, int], whole: set[nn.Parameter], mesh: Mesh) -> Counter[int]:
    """Return number of processes -> bytes of gradients averaged over them in a buffer."""
    bytes_by_size = Counter[int]()
    for parameter, size in trained.items():
        same = mesh.tensor if parameter in whole else 1  # processes of a tensor group with a replica
        sharded = mesh.shards > 1 and parameter.ndim > 0
        bytes_by_size[same if sharded else same * mesh.data] += size
    del bytes_by_size[1]
    return bytes_by_size
