"""The network in stages, which work on parts of a batch at the same time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from satrap.batch import EmbeddedBatch
from satrap.dense.backend import LossOfBatch, Parts
from satrap.dense.connected import ConnectedWorkers
from satrap.dense.data_parallel import DataParallel, average
from satrap.dense.deferred import common
from satrap.dense.divided import Divided, check_separable
from satrap.dense.offload import MakeOptimizer
from satrap.dense.passes import Boundary, Passes, Stage
from satrap.dense.pieces import spread
from satrap.dense.precision import autocast
from satrap.dense.stages import Link, links_of, stage_cuts, stages_of
from satrap.dense.tensor_plan import tensor_plan
from satrap.dense.workers import Workers
from satrap.errors import ConfigError
from satrap.exchange import Exchange


class Pipelined(Divided):
    """Each process has one stage or some, which are layers of the network, and their optimizer.

    `run` sends the parts of a batch through the stages, one behind another, and their gradients back. The
    first stage alone gets embeddings, so it alone has gradients of rows. Copies of a stage average their
    gradients; then all processes agree on the step. With `Mesh.tensor`, the processes of a stage have parts
    of its layers. With `Mesh.sharded`, its copies hold a share of its weights each; PyTorch gathers them for
    the first part of a batch, and reduces the gradients of all parts together after the last.

    Until `try_out`, each process has the whole network, or no memory for it, see `deferred`, and no
    optimizer.

    Args:
        model: the network, see `links_of`; it begins with the weights it has in process 0.
        make: makes its optimizer from the list of trainable parameters, or None.
        clip_norm: limit of the global gradient norm over parameters and rows, see `DataParallel`.
        workers: the processes of the mesh.
        precision: in which the stages compute, and hand on what they compute, see `Divided`.
        recomputes: whether stages compute their activations twice, see `Stage`.

    Raises:
        ConfigError: the network cannot be cut so, see `tensor_plan`, or the optimizer looks at more than one
            number at a time and layers are divided.
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
        assert isinstance(workers, ConnectedWorkers)
        # Not as `Divided` begins: here one stage is cut, and the optimizer is first that of all stages.
        DataParallel.__init__(self, model, None, clip_norm, workers, precision)
        self._precision, self._recomputes = precision, recomputes
        self.pipeline, self._mesh = self, workers.mesh
        self._places = self._mesh.numbers(workers.pipeline.rank)
        self.count = self._mesh.parts
        links_of(model, self._mesh)  # raises what needs no batch
        if make is not None and tensor_plan(model, self._mesh.tensor):
            check_separable(make)
        self._record, self._make = common(model, workers), make
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        self._device = device if self._record is None else self._record.device
        self.trainable = make is not None

    def try_out(self, batch: EmbeddedBatch) -> None:
        """See `Pipeline.try_out`; then this process keeps its part of its stages, and lets the rest go."""
        with nullcontext() if self._record is None else self._record.reading():
            links, boundaries = self._cut(batch)
        plan = stage_cuts(self.model, self._mesh, links)
        self._names = set[str]().union(*(_names(self.model, links, number) for number in self._places))
        assert isinstance(self.workers, ConnectedWorkers)
        mesh, last = self.workers.device_mesh(self._device.type), self._mesh.stage_count - 1
        stages = {
            n: Stage(
                links[n],
                first=n == 0,
                last=n == last,
                precision=self._precision,
                device=self._device,
                recomputes=self._recomputes,
            )
            for n in self._places
        }
        self.parameters = []  # else each stays whole until all are divided
        pieces = spread(self.model, self._mesh, mesh, plan, [*stages.values()], self._record)
        own = {piece.parameter for piece in pieces}
        for module in self.model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                if parameter not in own:
                    empty = torch.empty(parameter.shape, dtype=parameter.dtype, device="meta")
                    setattr(module, name, nn.Parameter(empty, requires_grad=parameter.requires_grad))
        if self._record is not None:
            self._record.fill(self.model.modules())  # the buffers of all stages
        self._know(pieces, self._make)
        if self._record is not None:
            self._equalize()
        group = self.workers.pipeline_group(self._device.type)
        self._training, self._scoring = (
            Passes(stages, boundaries, self._mesh, group=group, device=self._device, backward=backward)
            for backward in (True, False)
        )
        [logits] = boundaries[-1]
        self._shape = logits.shape

    def _cut(self, batch: EmbeddedBatch) -> tuple[list[list[Link]], list[list[Boundary]]]:
        """Return the stages, and what follows each, if together they are the network."""
        was = self.model.training
        self.model.eval()
        cutting = stages_of(self.model, self._mesh, batch)
        with torch.no_grad():
            whole = self.model(batch)
        handed = cutting.handed
        if self._precision != "float32":  # it has another format then
            with autocast(self._precision, self._device):
                handed = stages_of(self.model, self._mesh, batch).handed
        self.model.train(was)
        last = cutting.handed[-1][0]
        several = len(cutting.handed[-1]) > 1
        if several or last.shape != whole.shape or not torch.allclose(last, whole, 1e-4, 1e-5):
            raise ConfigError(
                f"the chain of {type(self.model).__name__} does not compute what its forward does",
                why="its stages would learn another network",
                fix="compare both on a batch",
            )
        return cutting.stages, [[Boundary.of(t, batch.size) for t in one] for one in handed]

    def settle(self, exchange: Exchange) -> None:
        """Give all processes of the stage the buffers of the first; copies of weights are equal."""
        for group in (self.workers.data, self.workers.tensor):
            group.broadcast(list(self._buffers().values()))

    def _buffers(self) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in self.model.named_buffers() if name in self._names}

    def run(
        self, parts: Parts, loss: LossOfBatch, weights: Sequence[float], share: float
    ) -> tuple[Tensor, Tensor]:
        """See `Pipeline.run`."""
        for parameter in self.parameters:
            parameter.grad = None
        total, losses = sum(weights), list[Tensor]()

        def of_part(number: int, logits: Tensor) -> Tensor:
            found = loss(logits, parts.batches[number]) * (weights[number] / total if total else 0.0)
            losses.append(found.detach())
            return found * (share * self.scale.value)

        logits = self._training.run(parts.batches, of_part)
        if parts.backward() and 0 not in self._places:
            raise ConfigError(
                "the loss uses embeddings, and the first stage alone has those",
                why="their rows would not learn from it",
                fix="hand what the loss needs on in the chain, or use mesh.data",
            )
        return self._shared(parts, logits, losses)

    def scores(self, parts: Parts) -> Tensor:
        """See `Pipeline.scores`."""
        return self._shared(parts, self._scoring.run(parts.batches), [])[0]

    def _shared(
        self, parts: Parts, logits: Sequence[Tensor], losses: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return logits and mean loss, which the last stage alone gives, in all stages."""
        size = sum(parts.sizes)
        flat = torch.zeros(1 + size * math.prod(self._shape), device=self._device)
        if logits:
            real = [one[:size] for one, size in zip(logits, parts.sizes, strict=True)]
            flat[1:] = torch.cat(real).view(-1)
            flat[0] = sum(losses, torch.zeros((), device=self._device))
        self.workers.pipeline.sum(flat)
        return flat[1:].view(size, *self._shape), flat[0]

    def _backward(self, loss: Tensor | None, share: float) -> Tensor:
        """Return the loss, times the share; `run` has computed the gradients."""
        assert loss is not None, "every process takes part in the passes"
        return loss.double() * share

    def _average(self) -> None:
        """Average the gradients over the processes that have the same part of the stage."""
        pairs = list(zip(self._locals, self._trained, strict=True))
        copied = [local for local, piece in pairs if not piece.sharded]
        whole = [local for local, piece in pairs if piece.tensor_dim is None]
        # Those of tensor peers are equal but for rounding, which must not make the copies differ.
        for chosen, group in ((copied, self.workers.data), (whole, self.workers.tensor)):
            if chosen and group.size > 1:
                average(chosen, group)

    def _tensors(self) -> dict[str, Tensor]:
        """See `Divided`."""
        return {name: tensor for name, tensor in super()._tensors().items() if name in self._names}

    def own(self) -> dict[str, Tensor]:
        """Return copies of the stage's buffers, except in the process whose buffers are in `part`."""
        if self._first:
            return {}
        return {name: tensor.detach().cpu().clone() for name, tensor in self._buffers().items()}


def _names(model: nn.Module, stages: Sequence[Sequence[Link]], number: int) -> set[str]:
    """Return the names of parameters and buffers of a stage; buffers of no step are the first's."""
    of_stage = [{m for link in stage for used in link.modules for m in used.modules()} for stage in stages]
    elsewhere = set[nn.Module]().union(*of_stage)
    own = {p for link in stages[number] for p in link.parameters}
    names = {name for name, p in model.named_parameters(remove_duplicate=False) if p in own}
    for prefix, module in model.named_modules(remove_duplicate=False):
        if module in of_stage[number] or (number == 0 and module not in elsewhere):
            names |= {f"{prefix}.{name}".lstrip(".") for name, _ in module.named_buffers(recurse=False)}
    return names
