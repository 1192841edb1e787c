"""The network in pipeline stages, which work on different microbatches at the same time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from satrap.batch import EmbeddedBatch
from satrap.dense.backends.data_parallel import average
from satrap.dense.backends.protocol import BatchParts, LossOfBatch
from satrap.dense.backends.sharded import ShardedBackend, check_separable
from satrap.dense.comm.workers import Workers
from satrap.dense.compute.precision import autocast
from satrap.dense.memory.optimizer_offload import MakeOptimizer
from satrap.dense.parallel.pipeline_runner import Boundary, PipelineRunner, Stage
from satrap.dense.parallel.stages import ChainStep, chain_steps, stage_cuts, stages_of
from satrap.dense.parallel.tensor_plan import tensor_plan
from satrap.errors import ConfigError
from satrap.exchange import Exchange


class PipelinedBackend(ShardedBackend):
    """Each process has one or more stages, which are layers of the network, and their optimizer.

    `run` sends the microbatches of a batch through the stages, and their gradients back. Only the first stage
    gets embeddings, so only it has gradients of rows. Copies of a stage average their gradients; then all
    processes agree on the step. With `Mesh.tensor`, the processes of a stage split its layers. With
    `Mesh.sharded`, its copies shard its weights; PyTorch gathers them for the first microbatch, and reduces
    the gradients of all microbatches together after the last.

    Until `try_out`, each process has the whole network, or no memory for it, see `build`, and no
    optimizer.

    Args:
        model: the network, see `chain_steps`; training starts with the weights it has in process 0.
        make, clip_norm, workers: see `ShardedBackend`.
        precision: precision of the stages and of the tensors they send, see `ShardedBackend`.
        recomputes: whether stages recompute their activations, see `Stage`.

    Raises:
        ConfigError: the network cannot be split this way, see `tensor_plan`, or layers are split and the
            optimizer's update is not elementwise.
    """

    def __init__(
        self,
        model: nn.Module,
        make: MakeOptimizer | None,
        clip_norm: float | None,
        workers: Workers | None = None,
        precision: str = "float32",
        *,
        recomputes: bool = False,
    ) -> None:
        self._recomputes = recomputes
        super().__init__(model, make, clip_norm, workers, precision)

    def _set_up(self, make: MakeOptimizer | None) -> None:
        self.pipeline, self._mesh, self._make = self, self.workers.mesh, make
        self._places, self.count = self._mesh.numbers(self.workers.pipeline.rank), self._mesh.parts
        chain_steps(self.model, self._mesh)  # raises errors that need no batch
        if make is not None and tensor_plan(self.model, self._mesh.tensor):
            check_separable(make)
        self._begin_in_parts()

    def try_out(self, batch: EmbeddedBatch) -> None:
        """See `Pipeline.try_out`; afterwards this process keeps its shards of its stages only."""
        cut = partial(self._cut, batch)
        links, boundaries = cut() if self._record is None else self._record.computed(self.model, cut)
        self._names = set[str]().union(*(_names(self.model, links, number) for number in self._places))
        last = self._mesh.stage_count - 1
        stages = {
            n: Stage(
                links[n],
                first=n == 0,
                last=n == last,
                precision=self.precision,
                device=self._device,
                recomputes=self._recomputes,
            )
            for n in self._places
        }
        self._shard(self._make, stage_cuts(self.model, self._mesh, links), [*stages.values()])
        group = self.workers.pipeline_group(self._device.type)
        self._training, self._scoring = (
            PipelineRunner(
                stages, boundaries, self._mesh, group=group, device=self._device, backward=backward
            )
            for backward in (True, False)
        )
        [logits] = boundaries[-1]
        self._shape = logits.shape

    def _cut(self, batch: EmbeddedBatch) -> tuple[list[list[ChainStep]], list[list[Boundary]]]:
        """Return the stages and their boundaries, if together they compute the network."""
        was = self.model.training
        self.model.eval()
        cutting = stages_of(self.model, self._mesh, batch)
        with torch.no_grad():
            whole = self.model(batch)
        handed = cutting.handed
        if self.precision != "float32":  # then the boundary tensors have another dtype
            with autocast(self.precision, self._device):
                handed = stages_of(self.model, self._mesh, batch).handed
        self.model.train(was)
        last = cutting.handed[-1][0]
        several = len(cutting.handed[-1]) > 1
        if several or last.shape != whole.shape or not torch.allclose(last, whole, 1e-4, 1e-5):
            raise ConfigError(
                f"the chain of {type(self.model).__name__} does not compute the same as its forward",
                why="the stages of the chain would train another network",
                fix="compare the outputs of chain and forward on one batch",
            )
        return cutting.stages, [[Boundary.of(t, batch.size) for t in tensors] for tensors in handed]

    def settle(self, exchange: Exchange) -> None:
        """Broadcast the stage's buffers from its first process; copies of weights are equal already."""
        for group in (self.workers.data, self.workers.tensor):
            group.broadcast(list(self._buffers().values()))

    def _buffers(self) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in self.model.named_buffers() if name in self._names}

    def run(self, parts: BatchParts, loss: LossOfBatch, share: float) -> tuple[Tensor, Tensor]:
        """See `Pipeline.run`."""
        for parameter in self.parameters:
            parameter.grad = None
        losses = list[Tensor]()

        def of_part(number: int, logits: Tensor) -> Tensor:
            part_loss = loss(logits, parts[number]) * parts.shares[number]
            losses.append(part_loss.detach())
            return part_loss * (share * self.scale.value)

        logits = self._training.run(parts, of_part)
        if 0 not in self._places and any(row.grad is not None for row in parts.rows):
            raise ConfigError(
                "the loss uses embeddings, which only the first stage has",
                why="the rows of these embeddings would get no gradient from the loss",
                fix="pass the loss's inputs along the chain, or use mesh.data",
            )
        return self._shared(parts, logits, losses)

    def scores(self, parts: BatchParts) -> Tensor:
        """See `Pipeline.scores`."""
        return self._shared(parts, self._scoring.run(parts), [])[0]

    def _shared(
        self, parts: BatchParts, logits: Sequence[Tensor], losses: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return logits and mean loss, which only the last stage computes, in all stages."""
        size = sum(parts.sizes)
        flat = torch.zeros(1 + size * math.prod(self._shape), device=self._device)
        if logits:
            real = [part[:size] for part, size in zip(logits, parts.sizes, strict=True)]
            flat[1:] = torch.cat(real).view(-1)
            flat[0] = sum(losses, torch.zeros((), device=self._device))
        self.workers.pipeline.sum(flat)
        return flat[1:].view(size, *self._shape), flat[0]

    def backward(self, loss: Tensor, share: float, *, last: bool = True) -> None:
        """Count the loss; `run` has computed the gradients."""
        self._losses.append(loss.double() * share)

    def _average(self) -> None:
        """Average the gradients over the processes that hold the same shard of the stage."""
        pairs = list(zip(self._locals, self._trained, strict=True))
        copied = [local for local, piece in pairs if not piece.sharded]
        whole = [local for local, piece in pairs if piece.tensor_dim is None]
        # Tensor peers' gradients are equal except for rounding, which must not make the copies differ.
        for chosen, group in ((copied, self.workers.data), (whole, self.workers.tensor)):
            if chosen and group.size > 1:
                average(chosen, group)

    def _tensors(self) -> dict[str, Tensor]:
        """See `ShardedBackend`."""
        return {name: tensor for name, tensor in super()._tensors().items() if name in self._names}

    def own(self) -> dict[str, Tensor]:
        """Return copies of the stage's buffers, except in the process whose buffers are in `part`."""
        if self._first:
            return {}
        return {name: tensor.detach().cpu().clone() for name, tensor in self._buffers().items()}


def _names(model: nn.Module, stages: Sequence[Sequence[ChainStep]], number: int) -> set[str]:
    """Return the names of a stage's parameters and buffers; the first stage has unused buffers."""
    of_stage = [{m for link in stage for used in link.modules for m in used.modules()} for stage in stages]
    elsewhere = set[nn.Module]().union(*of_stage)
    parameters = {p for link in stages[number] for p in link.parameters}
    names = {name for name, p in model.named_parameters(remove_duplicate=False) if p in parameters}
    for prefix, module in model.named_modules(remove_duplicate=False):
        if module in of_stage[number] or (number == 0 and module not in elsewhere):
            names |= {f"{prefix}.{name}".lstrip(".") for name, _ in module.named_buffers(recurse=False)}
    return names
