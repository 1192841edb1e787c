"""One process's forward and backward passes of the parts of a batch."""

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

from satrap.batch import EmbeddedBatch
from satrap.dense.mesh import Mesh
from satrap.dense.precision import autocast, shared_casts
from satrap.dense.recompute import segment_length
from satrap.dense.stages import Link, compute, tensors
from satrap.errors import ConfigError

LossOfPart = Callable[[int, Tensor], Tensor]
"""(number of a part, its logits) -> its part of the loss."""

_SCHEDULES: dict[str, Any] = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved_1f1b": ScheduleInterleaved1F1B,
    "looped_bfs": ScheduleLoopedBFS,
}

# Schedules of several stages would print themselves beside each error.
logging.getLogger(schedules.__name__).setLevel(logging.CRITICAL)


@dataclass(frozen=True, slots=True)
class Boundary:
    """A tensor that one stage hands to the next, or the logits of the last; of any number of samples.

    Args:
        shape: without the samples.
        dtype: of its numbers.
        requires_grad: whether a gradient goes back.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool

    @classmethod
    def of(cls, tensor: Tensor, size: int) -> Boundary:
        """Describe one of a batch of some size; `ConfigError` if its first dimension are not the samples."""
        if tensor.ndim == 0 or tensor.shape[0] != size:
            raise ConfigError(
                f"a stage of the model would hand on a tensor of shape {list(tensor.shape)}",
                why=f"the batch had {size} samples, and these must be its first dimension",
                fix="change what the step of the chain returns, or cut elsewhere (dense.stages)",
            )
        return cls(tuple(tensor.shape[1:]), tensor.dtype, tensor.requires_grad)

    def example(self, size: int) -> Tensor:
        """Return such a tensor, without memory."""
        made = torch.empty(size, *self.shape, dtype=self.dtype, device="meta")
        return made.requires_grad_(self.requires_grad)


class Passes:
    """Sends the parts of batches through some stages; `torch.distributed.pipelining` does it.

    Only the number of a part goes in at the front. Each stage has all parts and looks up what it needs, so
    rows, labels and weights do not pass boundaries. PyTorch makes its buffers once, so a tensor at a boundary
    has as many samples as the largest part so far; the missing ones are zeros, which the receiver cuts off.

    Args:
        stages: which this process computes, by their numbers.
        boundaries: what each stage hands on.
        mesh: schedule, numbers of stages and parts.
        group: the processes of the pipeline, for PyTorch.
        device: where the stages compute.
        backward: whether to compute gradients, too.
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

    def run(self, parts: Sequence[EmbeddedBatch], loss: LossOfPart | None = None) -> list[Tensor]:
        """Compute all parts; all processes of the pipeline call it.

        Gradients are added to those of parameters and leaves.

        Args:
            parts: as many as the mesh says.
            loss: asked where the last stage is, if there is a backward pass.

        Returns:
            Where the last stage is, the logits of each part, detached; elsewhere nothing.
        """
        size = max(part.size for part in parts)
        if self._schedule is None or size > self._size:
            self._size, self._schedule = size, self._make(size)
        numbers = torch.arange(len(parts), device=self._device)
        for stage in self._stages.values():
            stage.begin(parts, self._size)
        self._loss = loss
        given = {"number": numbers}
        if self._mesh.stage_count - 1 in self._stages and self._backward:
            given["target"] = numbers
        step = self._schedule.step if self._backward else self._schedule.eval
        try:
            with shared_casts(self._device):
                step(*([numbers] if 0 in self._stages else []), **given, return_outputs=False)
        except RuntimeError as error:
            if error.__cause__ is None:
                raise
            raise error.__cause__ from None  # of the model; PyTorch adds the shapes of all inputs
        return [stage.end() for stage in self._stages.values()][-1]

    def _make(self, size: int) -> Any:
        made = [self._placed(number, size) for number in self._stages]
        given, parts = made if len(made) > 1 else made[0], self._mesh.parts
        if not self._backward:
            return (ScheduleLoopedBFS if len(made) > 1 else ScheduleGPipe)(given, parts)  # type: ignore[arg-type]
        kind = _SCHEDULES[self._mesh.schedule]
        # It would divide the gradients of parameters by the number of parts, but not those of rows.
        return kind(given, parts, loss_fn=self._loss_of, scale_grads=False)

    def _placed(self, number: int, size: int) -> PipelineStage:
        """Return a stage as PyTorch has it, for parts of at most `size` samples."""
        before = self._boundaries[number - 1] if number else None
        entering = (torch.empty(1, dtype=torch.int64, device="meta"),)
        return PipelineStage(
            self._stages[number],
            number,
            self._mesh.stage_count,
            self._device,
            # Known shapes: otherwise a first pass of zeros finds them, and pickles what it found.
            input_args=entering if before is None else tuple(one.example(size) for one in before),
            output_args=tuple(one.example(size) for one in self._boundaries[number]),
            group=self._group,
        )

    def _loss_of(self, output: Tensor, number: Tensor) -> Tensor:
        assert self._loss is not None
        part = int(number[0])
        return self._loss(part, self._stages[self._mesh.stage_count - 1].logits(part, output))


class Stage(nn.Module):
    """What PyTorch calls for each part; `fully_shard` gathers the weights for it, if they are sharded.

    Args:
        links: of the stage.
        first: whether it is the first stage, which gets the parts themselves.
        last: whether it is the last stage, which keeps its logits.
        precision: in which it computes, see `satrap.dense.precision.computed`.
        device: where.
        recomputes: whether the backward pass computes again what is between its segments, about the root of
            n of n links each. The first link of the network is not: it takes embeddings, not tensors.

    Attributes:
        used: the modules of its links.
    """

    def __init__(
        self,
        links: Sequence[Link],
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
        kept = len(links) if not recomputes else int(first)
        each = segment_length(len(links) - kept)
        segments = [links[start : start + each] for start in range(kept, len(links), each)]
        self._kept, *self._segments = (
            [step for link in segment for step in link.steps] for segment in (links[:kept], *segments)
        )
        self.used = nn.ModuleList(dict.fromkeys(module for link in links for module in link.modules))

    def begin(self, parts: Sequence[EmbeddedBatch], size: int) -> None:
        """Take the parts of a batch, the largest of which has `size` samples."""
        self._parts, self._size, self._found = parts, size, list[Tensor]()

    def end(self) -> list[Tensor]:
        """Return the logits of each part, detached, in the last stage; forget the parts."""
        found, self._found, self._parts = self._found, [], []
        return found

    def logits(self, number: int, sent: Tensor) -> Tensor:
        """Return what the last stage has made of a part, float32, without what it was filled up with."""
        found: Tensor = _Received.apply(sent, self._parts[number].size)  # type: ignore[no-untyped-call]
        return found.float()

    def forward(self, *given: Tensor, number: Tensor) -> Any:
        """Compute a part; PyTorch gives its number, and what the stage before has sent."""
        sent = self.compute(int(number[0]), () if self._first else given)
        return sent if len(sent) > 1 else sent[0]

    def compute(self, number: int, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return what the stage sends of a part, made of what it was given; the first stage is not."""
        part = self._parts[number]
        entering: Any = part
        if given:
            received = tuple(_Received.apply(one, part.size) for one in given)  # type: ignore[no-untyped-call]
            entering = received if len(received) > 1 else received[0]
        with self._autocast():
            entering = compute(self._kept, entering)
            for segment in self._segments:
                entering = checkpoint(compute, segment, entering, use_reentrant=False)
        found = tensors(entering)
        if self._last:
            self._found.append(found[0].detach())
        return tuple(_Sent.apply(one, self._size) for one in found)  # type: ignore[no-untyped-call]


class _Sent(torch.autograd.Function):
    """Fills a tensor up with zeros to a number of samples."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, size: int) -> Tensor:
        ctx.samples = len(tensor)
        return torch.cat([tensor, tensor.new_zeros(size - len(tensor), *tensor.shape[1:])])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient[: ctx.samples], None


class _Received(torch.autograd.Function):
    """Cuts off samples at the end; its gradient is contiguous, since it is sent."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, samples: int) -> Tensor:
        ctx.size = len(tensor)
        return tensor[:samples].clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        missing = gradient.new_zeros(ctx.size - len(gradient), *gradient.shape[1:])
        return torch.cat([gradient, missing]), None
