"""One stage's forward and backward passes of the parts of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from satrap.batch import EmbeddedBatch
from satrap.dense.mesh import Mesh
from satrap.dense.stages import Link, compute, tensors
from satrap.errors import ConfigError

LossOfPart = Callable[[int, Tensor], Tensor]
"""(number of a part, its logits) -> its part of the loss."""

_SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


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
    """Sends the parts of batches through a stage; `torch.distributed.pipelining` does it.

    Only the number of a part goes in at the front. Each stage has all parts and looks up what it needs, so
    rows, labels and weights do not pass boundaries. PyTorch makes its buffers once, so a tensor at a boundary
    has as many samples as the largest part so far; the missing ones are zeros, which the receiver cuts off.

    Args:
        stage: which this process computes.
        number: of this stage.
        boundaries: what each stage hands on.
        mesh: schedule, numbers of stages and parts.
        group: the processes of the pipeline, for PyTorch.
        device: where the stage computes.
        backward: whether to compute gradients, too.
    """

    def __init__(
        self,
        stage: Stage,
        number: int,
        boundaries: Sequence[Sequence[Boundary]],
        mesh: Mesh,
        *,
        group: Any,
        device: torch.device,
        backward: bool,
    ) -> None:
        self._number, self._boundaries, self._mesh = number, boundaries, mesh
        self._group, self._device, self._backward = group, device, backward
        self._stage, self._size = stage, 0
        self._schedule: Any = None

    def run(self, parts: Sequence[EmbeddedBatch], loss: LossOfPart | None = None) -> list[Tensor]:
        """Compute all parts; all stages call it. Gradients are added to those of parameters and leaves.

        Args:
            parts: as many as the mesh says.
            loss: asked in the last stage, if there is a backward pass.

        Returns:
            In the last stage, the logits of each part, detached; elsewhere nothing.
        """
        size = max(part.size for part in parts)
        if self._schedule is None or size > self._size:
            self._size, self._schedule = size, self._make(size)
        stage, numbers = self._stage, torch.arange(len(parts), device=self._device)
        stage.begin(parts, self._size)
        self._loss = loss
        last = self._number == self._mesh.pipeline - 1
        given: dict[str, Any] = {} if self._number == 0 else {"number": numbers}
        if last and self._backward:
            given["target"] = numbers
        step = self._schedule.step if self._backward else self._schedule.eval
        try:
            step(*([] if self._number else [numbers]), **given, return_outputs=False)
        except RuntimeError as error:
            if error.__cause__ is None:
                raise
            raise error.__cause__ from None  # of the model; PyTorch adds the shapes of all inputs
        return stage.end()

    def _make(self, size: int) -> Any:
        before = self._boundaries[self._number - 1] if self._number else None
        entering = (torch.empty(1, dtype=torch.int64, device="meta"),)
        stage = PipelineStage(
            self._stage,
            self._number,
            self._mesh.pipeline,
            self._device,
            # Known shapes: otherwise a first pass of zeros finds them, and pickles what it found.
            input_args=entering if before is None else tuple(one.example(size) for one in before),
            output_args=tuple(one.example(size) for one in self._boundaries[self._number]),
            group=self._group,
        )
        if not self._backward:
            return ScheduleGPipe(stage, self._mesh.parts)
        kind = _SCHEDULES[self._mesh.schedule]
        # It would divide the gradients of parameters by the number of parts, but not those of rows.
        return kind(stage, self._mesh.parts, loss_fn=self._loss_of, scale_grads=False)

    def _loss_of(self, output: Tensor, number: Tensor) -> Tensor:
        assert self._loss is not None
        part = int(number[0])
        return self._loss(part, self._stage.logits(part, output))


class Stage(nn.Module):
    """What PyTorch calls for each part; `fully_shard` gathers the weights for it, if they are sharded.

    Args:
        links: of the stage.
        last: whether it is the last stage, which keeps its logits.

    Attributes:
        used: the modules of its links.
    """

    def __init__(self, links: Sequence[Link], *, last: bool) -> None:
        super().__init__()
        self._steps, self._last = [step for link in links for step in link.steps], last
        self.used = nn.ModuleList(dict.fromkeys(module for link in links for module in link.modules))

    def begin(self, parts: Sequence[EmbeddedBatch], size: int) -> None:
        """Take the parts of a batch, the largest of which has `size` samples."""
        self._parts, self._size, self._found = parts, size, list[Tensor]()

    def end(self) -> list[Tensor]:
        """Return the logits of each part, detached, in the last stage; forget the parts."""
        found, self._found, self._parts = self._found, [], []
        return found

    def logits(self, number: int, sent: Tensor) -> Tensor:
        """Return what the last stage has made of a part, without what it was filled up with."""
        found: Tensor = _Received.apply(sent, self._parts[number].size)  # type: ignore[no-untyped-call]
        return found

    def forward(self, *given: Tensor, number: Tensor | None = None) -> Any:
        """Compute a part; PyTorch gives its number, and what the stage before has sent."""
        part = int((given[0] if number is None else number)[0])
        sent = self.compute(part, () if number is None else given)
        return sent if len(sent) > 1 else sent[0]

    def compute(self, number: int, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return what the stage sends of a part, made of what it was given; the first stage is not."""
        part = self._parts[number]
        entering: Any = part
        if given:
            received = tuple(_Received.apply(one, part.size) for one in given)  # type: ignore[no-untyped-call]
            entering = received if len(received) > 1 else received[0]
        found = tensors(compute(self._steps, entering))
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
