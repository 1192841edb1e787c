"""The network on one device, or a copy of it in each of several processes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from satrap.checkpoint.dense import same_shapes
from satrap.checkpoint.saved_dense import DensePart
from satrap.dense.backends.protocol import DenseBackend, DenseState, PendingStep, StepResult, in_memory
from satrap.dense.comm.compressed_gradients import KEPT, LARGEST, PowerSGD, compressed
from satrap.dense.comm.workers import WorkerGroup, Workers
from satrap.dense.compute.fused import HostCopy, can_leave_out, fuse, keep_impl_flags, step_unless_overflow
from satrap.dense.compute.precision import LossScale
from satrap.dense.memory.optimizer_offload import MakeOptimizer, OffloadedOptimizer
from satrap.errors import ConfigError
from satrap.exchange import Exchange
from satrap.runtime.finite_gradients import all_finite

LARGEST_SUM = 3e38
"""Largest magnitude for which a sum over workers is finite in every number format, with rounded terms."""


class DataParallelBackend(DenseBackend):
    """Each worker has the whole network and its optimizer; a single worker trains on one device.

    Several workers sum their gradients in one all-reduce of one buffer. In transit, gradients may be rounded,
    or compressed, see `satrap.dense.comm.compressed_gradients`. The buffer also carries each worker's
    verdict, exactly, so that either all workers take the step or none does. A worker also rejects the step if
    its gradients are finite, but so large that their sum over all workers might overflow.

    Args:
        model: the network.
        make: makes its optimizer from the list of trainable parameters, or None.
        clip_norm: limit of the global gradient norm over parameters and rows; None: no clipping. With W
            workers it is the root of |d|^2 + sum over workers of |g_w / W|^2, where d is the mean gradient of
            the parameters and g_w the gradient that worker w pushes for its rows. In `hybrid` each push is
            one update. In `sync` a row that several workers use gets one update with the summed gradient.
            Only the shards know its norm, which is at most sqrt(W) times the norm counted here.
        workers: all workers, default this one alone.
        precision: precision of the loss computation; with "float16" the loss is scaled, see `LossScale`.
    """

    def __init__(
        self,
        model: nn.Module,
        make: MakeOptimizer | None,
        clip_norm: float | None,
        workers: Workers | None = None,
        precision: str = "float32",
    ) -> None:
        self.model, self.trainable = model, make is not None
        self.workers = self.partners = workers or Workers()
        self.clip_norm, self.precision, self.scale = clip_norm, precision, LossScale(precision)
        self.optimizer: torch.optim.Optimizer | None = None
        self._base_rates: list[float] = []
        self._compressed: PowerSGD | None = None
        self._losses: list[Tensor] = []  # of the microbatches, each times its share
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self._set_up(make)

    def _set_up(self, make: MakeOptimizer | None) -> None:
        """Decide which weights this process has, and make their optimizer."""
        if make is not None and self.parameters:
            self._use(make(self.parameters))
        self._compressed = compressed(self.parameters, self.workers.data)

    def _use(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer, self._base_rates = optimizer, [g["lr"] for g in optimizer.param_groups]
        fuse(optimizer)

    def begin(self) -> None:
        """Broadcast the weights of the first copy to every copy of the network."""
        self.workers.data.broadcast(list(self.model.state_dict().values()))

    def settle(self, exchange: Exchange) -> None:
        """Broadcast the buffers of the first copy to every copy; the weights are equal already."""
        self.workers.data.broadcast(list(self.model.buffers()))

    def forget(self) -> None:
        """See `DenseBackend.forget`."""
        self._losses = []

    def backward(self, loss: Tensor, share: float, *, last: bool = True) -> None:
        """See `DenseBackend.backward`."""
        if not self._losses:
            for parameter in self.parameters:
                parameter.grad = None
        factor = share * self.scale.value
        (loss if factor == 1.0 else loss * factor).backward()  # type: ignore[no-untyped-call]
        self._losses.append(loss.detach().double() * share)

    def _mean_loss(self) -> Tensor:
        """Return the mean loss of the batch, times the share; 0 without a batch."""
        losses, self._losses = self._losses, []
        if losses:
            return torch.stack(losses).sum()
        for parameter in self.parameters:
            parameter.grad = None
        return torch.zeros((), dtype=torch.float64)

    def step(self, rows: Sequence[Tensor], lr_scale: float, *, stop: bool = False) -> PendingStep:
        """See `DenseBackend.step`."""
        empty, total = not self._losses, self._mean_loss()
        if not empty and self.partners.data.size == 1 and can_leave_out(self.optimizer):
            taken = self._step_ahead(total, rows, lr_scale, stop)
            return PendingStep(taken.accepted, partial(self._counted, taken))
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        right = empty or (finite_sum(total, gradients) and self._summable(gradients) and all_finite(rows))
        del gradients  # so that the averaged gradients can use their memory
        self.scale.divide([t.grad for t in (*self.parameters, *rows) if t.grad is not None])
        here = StepResult(right, total.item(), stop)
        of_rows = [row.grad for row in rows if row.grad is not None]
        if self.clip_norm is None:
            return PendingStep(right, lambda: self._finish(self._agree(here, of_rows), lr_scale))
        # Clipping still changes the gradients of rows: its factor needs the norm over all workers.
        agreed = self._agree(here, of_rows)
        return PendingStep(agreed.accepted, partial(self._finish, agreed, lr_scale))

    def _finish(self, agreed: StepResult, lr_scale: float) -> StepResult:
        """Take the step if all workers accept it, and adjust the loss scale."""
        if agreed.accepted:
            self._take(lr_scale)
        return self._counted(agreed)

    def _counted(self, agreed: StepResult) -> StepResult:
        """Adjust the loss scale after a step."""
        return replace(agreed, rescaled=self.scale.update(agreed.accepted))

    def _step_ahead(self, total: Tensor, rows: Sequence[Tensor], lr_scale: float, stop: bool) -> StepResult:
        """Queue a step before the host knows the verdict; the device skips it if it must."""
        of_rows = [row.grad for row in rows if row.grad is not None]
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        if any(row.is_cuda for row in rows):  # `all_finite` would wait for the device
            right = finite_on_device(total, [*gradients, *of_rows])
        else:
            right = finite_on_device(total, gradients) & all_finite(rows)
        gradients += of_rows
        self.scale.divide(gradients)
        if self.clip_norm is not None and gradients:
            norm = _norms(gradients).norm()
            torch._foreach_mul_(gradients, (self.clip_norm / (norm + 1e-6)).clamp(max=1.0))
        copy = HostCopy(torch.stack([right.double(), total.double()]))
        self._take(lr_scale, refused=~right)
        accepted, mean = copy.wait().tolist()
        return StepResult(accepted == 1, mean, stop)

    def _summable(self, gradients: Sequence[Tensor]) -> bool:
        """Return whether the sum of such gradients over the copies cannot overflow."""
        if self._compressed is None:
            return _summable(gradients, self.partners.data.size, LARGEST_SUM)
        terms = [*gradients, *self._compressed.errors.values()]
        return _summable(terms, self.partners.data.size, LARGEST)

    def _take(self, lr_scale: float, refused: Tensor | None = None) -> None:
        """Take the optimizer step, and drop the gradients: the next forward pass can use their memory."""
        if self.optimizer is not None:
            for group, rate in zip(self.optimizer.param_groups, self._base_rates, strict=True):
                group["lr"] = rate * lr_scale
            if refused is None:
                self.optimizer.step()
            else:
                step_unless_overflow(self.optimizer, refused)
            self.optimizer.zero_grad()
            for parameter in self.parameters:
                parameter.grad = None

    def _agree(self, here: StepResult, rows: Sequence[Tensor]) -> StepResult:
        """Sum gradients and verdicts over the partners, and clip."""
        of_rows = squares(rows) if self.clip_norm is not None and here.accepted else 0.0
        if self.partners.data.size > 1:
            here, of_rows = self._reduce(here, of_rows)
        if self.clip_norm is not None and here.accepted:
            dense = [p.grad for p in self.parameters if p.grad is not None]
            norm = math.sqrt(squares(dense) + of_rows)
            factor = min(self.clip_norm / (norm + 1e-6), 1.0)
            for gradient in (*dense, *rows):
                gradient.mul_(factor)
        return here

    def _reduce(self, here: StepResult, of_rows: float) -> tuple[StepResult, float]:
        """Replace the gradients by their mean over the copies of the network, in one all-reduce."""
        copies = self.partners.data
        say = [float(not here.accepted), here.loss if here.accepted else 0.0, of_rows, float(here.stop)]
        if self._compressed is not None:
            totals = self._compressed.average(say, refused=not here.accepted)
        else:  # A worker that rejects the step sends zeros: its NaN would spoil the sums.
            totals = average(self.parameters, copies, say, zero=not here.accepted)
        return StepResult(totals[0] == 0, totals[1] / copies.size, totals[3] > 0), totals[2] / copies.size**2

    def part(self) -> DensePart:
        """Return the whole network in process 0, nothing elsewhere."""
        if self.workers.rank > 0:
            return DensePart()
        weights, optimizer = self.model.state_dict(), dict[str, Any]()
        if self.optimizer is not None:
            optimizer = self.optimizer.state_dict()
            for group, rate in zip(optimizer["param_groups"], self._base_rates, strict=True):
                group["lr"] = rate
        return DensePart(weights, optimizer)

    def restore(self, whole: DenseState) -> None:
        """Restore the whole network."""
        difference = "" if whole.partial else same_shapes(whole.weights, self.model)
        if difference:
            raise ConfigError(
                "the network differs from the saved one",
                where=difference,
                fix="build the network with the arguments it was trained with",
            )
        with torch.no_grad():
            for name, tensor in self.model.state_dict().items():  # one at a time: see `dense.offload`
                if name in whole.weights:
                    tensor.copy_(in_memory(whole.weights[name]))
        if self.optimizer is not None and whole.optimizer:
            state = whole.optimizer["state"]
            if not isinstance(self.optimizer, OffloadedOptimizer):  # it reads tensors one at a time
                state = {
                    number: {k: in_memory(v) for k, v in entry.items()} for number, entry in state.items()
                }
            groups = keep_impl_flags(whole.optimizer["param_groups"], self.optimizer.param_groups)
            if whole.partial:
                groups = self.optimizer.state_dict()["param_groups"]
            self.optimizer.load_state_dict({"state": state, "param_groups": groups})
            self._base_rates = [g["lr"] for g in self.optimizer.param_groups]

    def own(self) -> dict[str, Tensor]:
        """Return copies of the buffers (process 0 has its buffers in `part`), and of compression errors."""
        tensors = {} if self.workers.rank == 0 else dict(self.model.named_buffers())
        if self._compressed is not None:
            tensors |= {f"{KEPT}{name}": t for name, t in self._compressed.state().items()}
        return {name: t.detach().cpu().clone() for name, t in tensors.items()}

    def restore_own(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore buffers, and compression errors if the compression has not changed."""
        buffers = dict(self.model.named_buffers())
        if self._compressed is not None:
            self._compressed.restore({name.removeprefix(KEPT): tensor for name, tensor in tensors.items()})
        with torch.no_grad():
            for name, value in tensors.items():
                if not name.startswith(KEPT):
                    buffers[name].copy_(value)


def average(
    parameters: Sequence[nn.Parameter], group: WorkerGroup, say: Sequence[float] = (), *, zero: bool = False
) -> list[float]:
    """Replace gradients by their mean over a group, in one all-reduce of one buffer.

    Args:
        parameters: their gradients are averaged; a missing one counts as zeros, unless all processes lack it.
        group: the processes.
        say: numbers to sum in the same buffer, without rounding.
        zero: whether this process sends zeros instead of its gradients.

    Returns:
        The sums of `say`.
    """
    head = [*say, *(float(p.grad is not None) for p in parameters)]
    parts = [
        torch.zeros_like(p, dtype=torch.float32).view(-1)
        if p.grad is None or zero
        else p.grad.detach().float().reshape(-1)
        for p in parameters
    ]
    device = parameters[0].device if parameters else torch.device("cpu")
    flat = torch.cat([torch.tensor(head, device=device), *parts])
    group.sum(flat, exact=len(head))
    totals = flat[: len(head)].tolist()
    values: Sequence[Tensor] = torch.split(
        flat[len(head) :].div_(group.size), [p.numel() for p in parameters]
    )
    for p, value, uses in zip(parameters, values, totals[len(say) :], strict=True):
        p.grad = value.view_as(p).to(p.dtype) if uses else None
    return totals[: len(say)]


def finite_sum(loss: Tensor, gradients: Sequence[Tensor]) -> bool:
    """Return whether the loss, all gradients, and the sum of each gradient are finite."""
    return bool(finite_on_device(loss, gradients))


def finite_on_device(loss: Tensor, gradients: Sequence[Tensor]) -> Tensor:
    """Return the result of `finite_sum` as a boolean tensor on the device of the loss."""
    # A sum is finite only if every term is: one cheap pass without a mask. This also rejects huge finite
    # gradients whose sum overflows, as it should.
    sums = [loss.detach().float(), *(g.sum(dtype=torch.float32).to(loss.device) for g in gradients)]
    return torch.isfinite(torch.stack(sums)).all()


def _summable(gradients: Sequence[Tensor], copies: int, largest: float) -> bool:
    # Checked before the sum, not after it: row gradients are sent before it, see `DenseBackend.step`.
    ends = [end.float().abs() for g in gradients if copies > 1 and g.numel() for end in torch.aminmax(g)]
    return not ends or bool(torch.stack(ends).max() <= largest / copies)


def squares(gradients: Sequence[Tensor]) -> float:
    """Return the sum of squares of all numbers."""
    if not gradients:
        return 0.0
    return float(_norms(gradients).square().sum())


def _norms(gradients: Sequence[Tensor]) -> Tensor:
    return torch.stack([torch.linalg.vector_norm(g.float()).to(gradients[0].device) for g in gradients])
