"""Needs of each process of a pipeline."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, count, islice

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from satrap.dense.compute.precision import autocast, shared_casts
from satrap.dense.parallel.pipeline_runner import Boundary, Stage
from satrap.dense.parallel.stages import stage_cuts, stages_of
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
from satrap.tools.plan.dense.sharding import Sharding, hold_weights
from satrap.train.step.loss import as_mean

CPU = torch.device("cpu")
BLANK = 2
"""Samples of the batch that determines the shapes at stage boundaries."""


def needs_of_stages(network: NetworkSpec, mesh: Mesh) -> list[Need]:
    """Return the needs of a pipeline's processes, in the order of their first stages.

    Each process computes the parts of a fake batch in the order of its schedule.

    Raises:
        ConfigError: the network cannot be cut into these stages, see `stages_of`.
    """
    rates = OptimizerCosts.of(network.optimizer).away(network.offload)
    return [_need(network, mesh, process, rates) for process in range(mesh.pipeline)]


def _need(network: NetworkSpec, mesh: Mesh, process: int, rates: OptimizerCosts) -> Need:
    with FakeTensorMode():
        model, live = network.make(), Live()
        with autocast(network.precision, CPU):
            cutting = stages_of(model, mesh, network.inputs.batch(network.inputs.leaves(), BLANK))
        stages, boundaries = cutting.stages, [[Boundary.of(t, BLANK) for t in one] for one in cutting.handed]
        largest, sums = largest_layer(model), list[int]()
        own_stages = {
            n: Called(
                Stage(
                    stages[n],
                    first=n == 0,
                    last=n == mesh.stage_count - 1,
                    precision=network.precision,
                    recomputes=network.checkpoint_activations,
                )
            )
            for n in mesh.numbers(process)
        }
        together = nn.ModuleList(own_stages.values())
        whole, inside = set(together.parameters()), set(together.modules())
        cuts = {
            name: cut
            for name, cut in stage_cuts(model, mesh, stages).items()
            if model.get_submodule(name) in inside
        }
        cut_layers(model, cuts, mesh.tensor, sums.append)
        live.know([*model.parameters(), *model.buffers()])
        sharding = {n: Sharding(stage, mesh, live) for n, stage in own_stages.items() if mesh.shards > 1}
        live.hold("parameters", sum(map(size_of, model.buffers())))
        trained = hold_weights(together.parameters(), mesh, live)
        live.begin(largest)
        live.hold("optimizer", round(rates.state * sum(trained.values()) / 4))
        part = -(-network.inputs.size // mesh.parts)
        # Activations received, whose gradients are sent back, and activations sent.
        sides = sum(_bytes(boundaries[n - 1], part) for n in own_stages if n > 0)
        sides += sum(_bytes(boundaries[n], part) for n in own_stages if n < mesh.stage_count - 1)
        rows = _passes(network, mesh, process, own_stages, boundaries, live, sharding)
        copied = sum(size for p, size in trained.items() if not sharding or p.ndim == 0)
        uncut = sum(size for p, size in trained.items() if p in whole)
        for averaged in (copied * (mesh.data > 1), uncut * (mesh.tensor > 1)):
            live.hold("buffers", averaged)
            live.hold("buffers", -averaged)
        live.hold("buffers", round(rates.beside * max(trained.values(), default=0) / 4))
        del rows  # kept alive up to here
    peers = (mesh.peers - 1) / mesh.peers
    sent = {
        "gradients": all_reduce(copied, mesh.data) + all_reduce(uncut, mesh.tensor),
        "activations": mesh.parts * sides + all_reduce(sum(sums), mesh.tensor),
        "rows": network.inputs.row_bytes * peers,
    }
    for one in sharding.values():
        weights, gradients = one.sent()
        sent["weights"] = sent.get("weights", 0) + weights
        sent["gradients"] += gradients
    return Need(mesh, dict(live.most), sent, process, float(live.flop))


class Called(nn.Module):
    """Calls a stage with the number of a part as an int, because tensors have no data here."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self.stage = stage

    def forward(self, number: int, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """See `Stage.compute`."""
        return self.stage.compute(number, given)


def _bytes(boundary: Sequence[Boundary], size: int) -> int:
    return sum(size_of(tensor.example(size)) for tensor in boundary)


def _passes(
    network: NetworkSpec,
    mesh: Mesh,
    process: int,
    own: Mapping[int, Called],
    boundaries: Sequence[Sequence[Boundary]],
    live: Live,
    sharding: Mapping[int, Sharding],
) -> list[Tensor]:
    """Run the forward and backward passes of one process's stages; return the rows of the batch."""
    last, size = mesh.stage_count - 1, -(-network.inputs.size // mesh.parts)
    with live, shared_casts(CPU):
        leaves = _leaves(network, live)
        # PyTorch has buffers per part, for activations of the previous stage and for gradients.
        before = {n: _buffers(boundaries[n - 1] if n else [], size, live, mesh.parts) for n in own}
        after = {n: _buffers(boundaries[n] if n < last else [], size, live, mesh.parts) for n in own}
        parts = network.inputs.parts(leaves, mesh.parts)
        for called in own.values():
            called.stage.begin(parts, size)
        for shard in sharding.values():
            shard.begin()
        sent, done = dict[tuple[int, int], tuple[Tensor, ...]](), Counter[int]()
        # With several stages, PyTorch holds sent tensors until the end of the schedule.
        kept = deque[Tensor | None](maxlen=None if mesh.per_rank > 1 else 0)
        for n, part, forward in order(mesh, process):
            if forward:
                sent[n, part] = own[n](part, before[n][part])
                if sharding:
                    sharding[n].turn()
                if n == last:
                    logits = own[n].stage.logits(part, *sent[n, part])
                    sent[n, part] = (as_mean(network.loss(logits, parts[part])),)
                else:
                    kept.extend(map(Tensor.detach, sent[n, part]))
                continue
            _back(sent.pop((n, part)), [None] if n == last else after[n][part])
            for buffer in before[n][part]:
                kept.append(buffer.grad)
                buffer.grad = None  # it is sent
            done[n] += 1
            if sharding and done[n] == mesh.parts:
                sharding[n].end()
        kept.clear()
        for called in own.values():
            called.stage.end()
    return leaves


def _leaves(network: NetworkSpec, live: Live) -> list[Tensor]:
    leaves = network.inputs.leaves()
    for leaf in leaves:
        live.call(leaf, "rows")
        live.follow(leaf, "rows")
    return leaves


def _back(sent: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
    pairs = [
        (output, gradient) for output, gradient in zip(sent, gradients, strict=True) if output.requires_grad
    ]
    torch.autograd.backward([output for output, _ in pairs], [gradient for _, gradient in pairs])


def _buffers(boundary: Sequence[Boundary], size: int, live: Live, parts: int) -> list[list[Tensor]]:
    made = [
        [
            torch.empty(size, *spec.shape, dtype=spec.dtype).requires_grad_(spec.requires_grad)
            for spec in boundary
        ]
        for _ in range(parts)
    ]
    for tensor in chain.from_iterable(made):
        live.call(tensor, "buffers")
    return made


def order(mesh: Mesh, process: int) -> Iterator[tuple[int, int, bool]]:
    """Yield (stage, part, whether it is the forward pass) in the order of a pipeline process."""
    stages, parts = mesh.numbers(process), mesh.parts
    if mesh.schedule in ("gpipe", "looped_bfs"):
        yield from ((stage, part, True) for stage in stages for part in range(parts))
        backward = range(parts) if mesh.schedule == "gpipe" else range(parts)[::-1]
        yield from ((stage, part, False) for stage in stages[::-1] for part in backward)
        return
    # parts computed for a stage before the next stage's turn
    each = parts // max(1, parts // mesh.pipeline) if mesh.per_rank > 1 else parts
    hops = mesh.pipeline - 1 - process
    ahead = (mesh.per_rank - 1) * each + 2 * hops if mesh.per_rank > 1 else hops
    total = mesh.per_rank * parts
    forward = _turns(stages, each, total, forward=True)
    yield from islice(forward, ahead)
    for step in _turns(stages[::-1], each, total, forward=False):
        yield from islice(forward, 1)
        yield step


def _turns(stages: Sequence[int], each: int, total: int, *, forward: bool) -> Iterator[tuple[int, int, bool]]:
    counts = {stage: count() for stage in stages}
    for turn in range(total):
        stage = stages[turn // each % len(stages)]
        yield stage, next(counts[stage]), forward
