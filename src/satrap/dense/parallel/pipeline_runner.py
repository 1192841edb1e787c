"""One process's forward and backward passes over microbatches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleLoopedBFS,
    schedules,
)
from torch.utils.checkpoint import checkpoint

from satrap.dense.backends.protocol import BatchParts
from satrap.dense.compute.precision import autocast, shared_casts
from satrap.dense.memory.activation_checkpoint import segment_length
from satrap.dense.parallel.stages import ChainStep, compute, tensors
from satrap.errors import ConfigError
from satrap.settings.mesh import Mesh

LossOfPart = Callable[[int, Tensor], Tensor]
"""(number of a microbatch, its logits) -> its part of the loss."""

_SCHEDULES: dict[str, Any] = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved_1f1b": ScheduleInterleaved1F1B,
    "looped_bfs": ScheduleLoopedBFS,
}

# Schedules with several stages would print themselves with each error.
logging.getLogger(schedules.__name__).setLevel(logging.CRITICAL)


@dataclass(frozen=True, slots=True)
class Boundary:
    """A tensor that a stage sends to the next, or the logits of the last; for any number of samples.

    Args:
        shape: without the sample dimension.
        dtype: of its elements.
        requires_grad: whether a gradient is sent back.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool

    @classmethod
    def of(cls, tensor: Tensor, size: int) -> Boundary:
        """Describe a tensor of a batch of `size`; `ConfigError` if its first dimension is not the samples."""
        if tensor.ndim == 0 or tensor.shape[0] != size:
            raise ConfigError(
                f"a stage of the model would send a tensor of shape {list(tensor.shape)}",
                why=f"the batch had {size} samples, and the first dimension of a tensor must be the samples",
                fix="change the return value of this step of the chain, or split elsewhere (dense.stages)",
            )
        return cls(tuple(tensor.shape[1:]), tensor.dtype, tensor.requires_grad)

    def example(self, size: int) -> Tensor:
        """Return such a tensor, without memory."""
        made = torch.empty(size, *self.shape, dtype=self.dtype, device="meta")
        return made.requires_grad_(self.requires_grad)


class PipelineRunner:
    """Runs microbatches through some stages, by `torch.distributed.pipelining`.

    The first stage receives only the number of a microbatch. Each stage has all microbatches and looks up its
    inputs, so rows, labels and weights do not cross stage boundaries. PyTorch allocates its buffers once, so
    a boundary tensor has as many samples as the largest microbatch so far; smaller ones are padded with
    zeros, which the receiver cuts off.

    Args:
        stages: the stages of this process, by number.
        boundaries: the tensors that each stage sends.
        mesh: schedule, numbers of stages and microbatches.
        group: the processes of the pipeline, as a PyTorch group.
        device: device of the stages.
        backward: whether to compute gradients as well.
    """

    def __init__(
        self,
        stages: Mapping[int, Stage],
        boundaries: Sequence[Sequence[Boundary]],
        mesh: Mesh,
        *,
        group: Any,
        device: torch.device,
        backward: bool,
    ) -> None:
        self._stages, self._boundaries, self._mesh = dict(stages), boundaries, mesh
        self._group, self._device, self._backward = group, device, backward
        self._schedule: Any = None
        self._size = 0

    def run(self, parts: BatchParts, loss: LossOfPart | None = None) -> list[Tensor]:
        """Compute all microbatches; all processes of the pipeline call this.

        Gradients are added to the gradients of parameters and leaves.

        Args:
            parts: as many microbatches as the mesh has.
            loss: called in the process of the last stage, if there is a backward pass.

        Returns:
            In the process of the last stage, the logits of each microbatch, detached; elsewhere nothing.
        """
        size = max(1, *parts.sizes)
        if self._schedule is None or size > self._size:
            self._size, self._schedule = size, self._make(size)
        numbers = torch.arange(len(parts), device=self._device)
        for stage in self._stages.values():
            stage.begin(parts, self._size)
        self._loss = loss
        inputs = {"number": numbers}
        if self._mesh.stage_count - 1 in self._stages and self._backward:
            inputs["target"] = numbers
        step = self._schedule.step if self._backward else self._schedule.eval
        try:
            with shared_casts(self._device):
                step(*([numbers] if 0 in self._stages else []), **inputs, return_outputs=False)
        except RuntimeError as error:
            if error.__cause__ is None:
                raise
            raise error.__cause__ from None  # the model's error; PyTorch adds the shapes of all inputs
        return [stage.end() for stage in self._stages.values()][-1]

    def _make(self, size: int) -> Any:
        made = [self._placed(number, size) for number in self._stages]
        stages, parts = made if len(made) > 1 else made[0], self._mesh.parts
        if not self._backward:
            return (ScheduleLoopedBFS if len(made) > 1 else ScheduleGPipe)(stages, parts)  # type: ignore[arg-type]
        kind = _SCHEDULES[self._mesh.schedule]
        # Scaling would divide the gradients of parameters by the number of microbatches, but not rows'
        # gradients.
        return kind(stages, parts, loss_fn=self._loss_of, scale_grads=False)

    def _placed(self, number: int, size: int) -> PipelineStage:
        """Return a stage as a PyTorch stage, for microbatches of at most `size` samples."""
        before = self._boundaries[number - 1] if number else None
        entering = (torch.empty(1, dtype=torch.int64, device="meta"),)
        return PipelineStage(
            self._stages[number],
            number,
            self._mesh.stage_count,
            self._device,
            # Given shapes: otherwise PyTorch runs a first pass of zeros to find them, and pickles the result.
            input_args=entering if before is None else tuple(boundary.example(size) for boundary in before),
            output_args=tuple(boundary.example(size) for boundary in self._boundaries[number]),
            group=self._group,
        )

    def _loss_of(self, output: Tensor, number: Tensor) -> Tensor:
        assert self._loss is not None
        part = int(number[0])
        return self._loss(part, self._stages[self._mesh.stage_count - 1].logits(part, output))


class Stage(nn.Module):
    """The module that PyTorch calls per microbatch; `fully_shard` gathers its weights if they are sharded.

    Args:
        links: steps of the chain in this stage.
        first: whether it is the first stage, which receives the microbatches themselves.
        last: whether it is the last stage, which keeps its logits.
        precision: precision of its computation, see `satrap.dense.compute.precision.computed`.
        device: its device.
        recomputes: whether the backward pass recomputes activations inside segments of about sqrt(n) of n
            links each. The first link of the network is not recomputed: it takes embeddings, not tensors.

    Attributes:
        used: the modules of its links.
    """

    def __init__(
        self,
        links: Sequence[ChainStep],
        *,
        first: bool,
        last: bool,
        precision: str = "float32",
        device: torch.device | str = "cpu",
        recomputes: bool = False,
    ) -> None:
        super().__init__()
        self._first, self._last = first, last
        self._autocast = partial(autocast, precision, torch.device(device))
        whole = len(links) if not recomputes else int(first)
        each = segment_length(len(links) - whole)
        segments = [links[start : start + each] for start in range(whole, len(links), each)]
        self._kept, *self._segments = (
            [step for link in segment for step in link.steps] for segment in (links[:whole], *segments)
        )
        self.used = nn.ModuleList(dict.fromkeys(module for link in links for module in link.modules))

    def begin(self, parts: BatchParts, size: int) -> None:
        """Set the microbatches of a batch, the largest of which has `size` samples."""
        self._parts: BatchParts | None = parts
        self._size, self._found = size, list[Tensor]()

    def end(self) -> list[Tensor]:
        """Return the logits of each microbatch, detached, in the last stage; drop the microbatches."""
        logits, self._found, self._parts = self._found, [], None
        return logits

    def logits(self, number: int, sent: Tensor) -> Tensor:
        """Return the last stage's output for a microbatch, float32, without padding."""
        logits: Tensor = _Received.apply(sent, self._samples(number))  # type: ignore[no-untyped-call]
        return logits.float()

    def _samples(self, number: int) -> int:
        assert self._parts is not None
        return max(1, self._parts.sizes[number])

    def forward(self, *given: Tensor, number: Tensor) -> Any:
        """Compute a microbatch, given its number and the tensors from the stage before."""
        sent = self.compute(int(number[0]), () if self._first else given)
        return sent if len(sent) > 1 else sent[0]

    def compute(self, number: int, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the tensors that the stage sends for a microbatch; `given` is empty for the first stage."""
        assert self._parts is not None
        if given:
            samples = self._samples(number)
            received = tuple(_Received.apply(tensor, samples) for tensor in given)  # type: ignore[no-untyped-call]
            entering: Any = received if len(received) > 1 else received[0]
        else:
            entering = self._parts[number]
        with self._autocast():
            entering = compute(self._kept, entering)
            for segment in self._segments:
                entering = checkpoint(compute, segment, entering, use_reentrant=False)
        outputs = tensors(entering)
        if self._last:
            self._found.append(outputs[0].detach())
        return tuple(_Sent.apply(tensor, self._size) for tensor in outputs)  # type: ignore[no-untyped-call]


class _Sent(torch.autograd.Function):
    """Pads a tensor with zeros to a number of samples."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, size: int) -> Tensor:
        ctx.samples = len(tensor)
        return torch.cat([tensor, tensor.new_zeros(size - len(tensor), *tensor.shape[1:])])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient[: ctx.samples], None


class _Received(torch.autograd.Function):
    """Cuts off padding samples; its gradient is contiguous, since it is sent."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, samples: int) -> Tensor:
        ctx.size = len(tensor)
        return tensor[:samples].clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        missing = gradient.new_zeros(ctx.size - len(gradient), *gradient.shape[1:])
        return torch.cat([gradient, missing]), None
