"""What each stage of a pipeline needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from satrap.dense.mesh import Mesh
from satrap.dense.passes import Boundary, Stage
from satrap.dense.stages import compute, stage_cuts, stages_of, tensors
from satrap.plan.dense.layers import cut_layers
from satrap.plan.dense.live import Live
from satrap.plan.dense.network import Need, Network, Rates, all_reduce, largest_layer, size_of
from satrap.plan.dense.sharding import Sharding, hold_weights
from satrap.train.loss import as_mean
from satrap.train.microbatches import MicroBatches

BLANK = 2
"""Samples of the batch whose shapes at the boundaries are found out."""


def needs_of_stages(network: Network, mesh: Mesh) -> list[Need]:
    """Return what the processes of a pipeline need, in the order of the stages.

    Each stage computes the parts of a batch without numbers in the order of its schedule.

    Raises:
        ConfigError: the network cannot be cut so, see `stages_of`.
    """
    rates = Rates.of(network.optimizer).away(network.offload)
    return [_need(network, mesh, number, rates) for number in range(mesh.pipeline)]


def _need(network: Network, mesh: Mesh, number: int, rates: Rates) -> Need:
    with FakeTensorMode():
        model, live = network.make(), Live()
        stages = stages_of(model, mesh)
        boundaries = _boundaries(network, [[s for link in stage for s in link.steps] for stage in stages])
        largest, sums = largest_layer(model), list[int]()
        stage = Called(Stage(stages[number], last=number == mesh.pipeline - 1))
        whole, inside = set(stage.parameters()), set(stage.modules())
        cuts = {
            name: cut for name, cut in stage_cuts(model, mesh).items() if model.get_submodule(name) in inside
        }
        cut_layers(model, cuts, mesh.tensor, sums.append)
        live.know([*model.parameters(), *model.buffers()])
        sharding = Sharding(stage, mesh, live) if mesh.shards > 1 else None
        live.hold("parameters", sum(map(size_of, model.buffers())))
        trained = hold_weights(stage.parameters(), mesh, live)
        live.begin(largest)
        live.hold("optimizer", round(rates.state * sum(trained.values()) / 4))
        part = -(-network.inputs.size // mesh.parts)
        sides = [_bytes(boundaries[n], part) for n in (number - 1, number)]
        arriving, leaving = sides[0] * (number > 0), sides[1] * (number < mesh.pipeline - 1)
        rows = _passes(network, mesh, number, stage, boundaries, live, sharding)
        copied = sum(kept for p, kept in trained.items() if sharding is None or p.ndim == 0)
        uncut = sum(kept for p, kept in trained.items() if p in whole)
        for averaged in (copied * (mesh.data > 1), uncut * (mesh.tensor > 1)):
            live.hold("buffers", averaged)
            live.hold("buffers", -averaged)
        live.hold("buffers", round(rates.beside * max(trained.values(), default=0) / 4))
        del rows  # they were needed until here
    peers = (mesh.peers - 1) / mesh.peers
    sent = {
        "gradients": all_reduce(copied, mesh.data) + all_reduce(uncut, mesh.tensor),
        "activations": mesh.parts * (arriving + leaving) + all_reduce(sum(sums), mesh.tensor),
        "rows": network.inputs.row_bytes * peers,
    }
    if sharding is not None:
        sent["weights"], gradients = sharding.sent()
        sent["gradients"] += gradients
    return Need(mesh, dict(live.most), sent, number)


class Called(nn.Module):
    """Calls a stage with the number of a part as no tensor, since tensors here have no numbers."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self.stage = stage

    def forward(self, number: int, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """See `Stage.compute`."""
        return self.stage.compute(number, given)


def _boundaries(network: Network, steps: Sequence[Sequence[object]]) -> list[list[Boundary]]:
    """Return what each stage hands on."""
    found, boundaries = network.inputs.batch(network.inputs.leaves(), BLANK), list[list[Boundary]]()
    for stage in steps:
        found = compute(stage, found)  # type: ignore[arg-type]
        boundaries.append([Boundary.of(tensor, BLANK) for tensor in tensors(found)])
    return boundaries


def _bytes(boundary: Sequence[Boundary], size: int) -> int:
    return sum(size_of(one.example(size)) for one in boundary)


def _passes(
    network: Network,
    mesh: Mesh,
    number: int,
    called: Called,
    boundaries: Sequence[Sequence[Boundary]],
    live: Live,
    sharding: Sharding | None,
) -> list[Tensor]:
    """Compute the passes of one stage; return the rows of the batch."""
    last, size, stage = number == mesh.pipeline - 1, -(-network.inputs.size // mesh.parts), called.stage
    with live:
        leaves = network.inputs.leaves()
        for leaf in leaves:
            live.call(leaf, "rows")
            live.follow(leaf, "rows")
        # PyTorch has a buffer for each part, of what comes from the stage before and of gradients.
        before = [_buffers(boundaries[number - 1], size, live) if number else [] for _ in range(mesh.parts)]
        after = [[] if last else _buffers(boundaries[number], size, live) for _ in range(mesh.parts)]
        parts = MicroBatches(network.inputs.batch(leaves), mesh.parts)
        stage.begin(parts.batches, size)
        if sharding is not None:
            sharding.begin()
        sent = dict[int, tuple[Tensor, ...]]()
        for part, forward in _order(mesh, number):
            if forward:
                sent[part] = called(part, before[part])
                if sharding is not None:
                    sharding.turn()
                if last:
                    logits = stage.logits(part, *sent[part])
                    sent[part] = (as_mean(network.loss(logits, parts.batches[part])),)
                continue
            gradients: list[Tensor | None] = [None] if last else [*after[part]]
            pairs = list(zip(sent.pop(part), gradients, strict=True))
            reached = [(one, gradient) for one, gradient in pairs if one.requires_grad]
            torch.autograd.backward([one for one, _ in reached], [gradient for _, gradient in reached])
            for buffer in before[part]:
                buffer.grad = None  # it is sent
            del pairs, reached
        if sharding is not None:
            sharding.end()
        parts.backward()
        stage.end()
    return leaves


def _buffers(boundary: Sequence[Boundary], size: int, live: Live) -> list[Tensor]:
    made = [torch.empty(size, *one.shape, dtype=one.dtype) for one in boundary]
    for tensor, one in zip(made, boundary, strict=True):
        live.call(tensor, "buffers")
        tensor.requires_grad_(one.requires_grad)
    return made


def _order(mesh: Mesh, number: int) -> Iterator[tuple[int, bool]]:
    """Yield (part, whether it is the forward pass) as a stage computes them."""
    ahead = mesh.parts if mesh.schedule == "gpipe" else min(mesh.parts, mesh.pipeline - number)
    yield from ((part, True) for part in range(ahead))
    for part in range(mesh.parts):
        yield part, False
        if part + ahead < mesh.parts:
            yield part + ahead, True
