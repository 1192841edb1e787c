"""The network on one device, or a copy of it in each of several processes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from satrap.checkpoint.dense import same_shapes
from satrap.checkpoint.saved_dense import DensePart
from satrap.dense import compressed
from satrap.dense.backend import DenseBackend, DenseState, Stepped, in_memory
from satrap.dense.fused import HostCopy, can_leave_out, fuse, kept_ways, step_unless
from satrap.dense.offload import MakeOptimizer, OffloadedOptimizer
from satrap.dense.precision import LossScale
from satrap.dense.workers import Group, Workers
from satrap.errors import ConfigError
from satrap.exchange import Exchange

LARGEST_SUM = 3e38
"""Magnitude up to which a sum over workers is finite in every number format, rounded terms included."""


class DataParallel(DenseBackend):
    """Each worker has the whole network and its optimizer; a worker alone trains on one device.

    Several workers add their gradients in one sum of one buffer; on their way they may be rounded, or
    compressed, see `satrap.dense.compressed`. The buffer
    also carries the verdict of each worker, exactly, so that all take the same step or none does. One whose
    gradients are finite, but so large that the sum of all might not be, refuses the step, too.

    Args:
        model: the network.
        make: makes its optimizer from the list of trainable parameters, or None.
        clip_norm: limit of the global gradient norm over parameters and rows; None: no clipping. With W
            workers it is the root of |d|^2 + sum over workers of |g_w / W|^2, where d is the mean gradient of
            the parameters and g_w what worker w pushes for its rows. In `hybrid` each push is one update.
            In `sync` a row that several workers use gets one update with the summed gradient. Only the shards
            know its norm, which is at most sqrt(W) times the norm counted here.
        workers: all workers, default this one alone.
        precision: in which the loss was computed; with "float16" it is scaled, see `LossScale`.
    """

    def __init__(
        self,
        model: nn.Module,
        make: MakeOptimizer | None,
        clip_norm: float | None,
        workers: Workers | None = None,
        precision: str = "float32",
    ) -> None:
        self.model = model
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.workers = self.partners = workers or Workers()
        self.trainable = make is not None
        self.optimizer = make(self.parameters) if make is not None and self.parameters else None
        if self.optimizer is not None:
            fuse(self.optimizer)
        self.clip_norm, self.scale = clip_norm, LossScale(precision)
        self._base_rates = [g["lr"] for g in self.optimizer.param_groups] if self.optimizer else []
        self._compressed = compressed.compressed(self.parameters, self.workers.data)
        self._losses: list[Tensor] = []  # of the parts of a batch, each times its share

    def begin(self) -> None:
        """Give every copy of the network the weights of the first."""
        self.workers.data.broadcast(list(self.model.state_dict().values()))

    def settle(self, exchange: Exchange) -> None:
        """Give every copy the buffers of the first; the weights are equal."""
        self.workers.data.broadcast(list(self.model.buffers()))

    def forget(self) -> None:
        """See `DenseBackend.forget`."""
        self._losses = []

    def accumulate(self, loss: Tensor, share: float) -> None:
        """See `DenseBackend.accumulate`."""
        if not self._losses:
            for parameter in self.parameters:
                parameter.grad = None
        factor = share * self.scale.value
        (loss if factor == 1.0 else loss * factor).backward()  # type: ignore[no-untyped-call]
        self._losses.append(loss.detach().double() * share)

    def _backward(self, loss: Tensor | None, share: float) -> Tensor:
        """Compute the gradients of the rest of a batch; return the mean loss of it all, times the share."""
        if loss is not None:
            self.accumulate(loss, share)
        else:
            for parameter in self.parameters:
                parameter.grad = None
        losses, self._losses = self._losses, []
        return torch.stack(losses).sum() if losses else torch.zeros((), dtype=torch.float64)

    def step(
        self,
        loss: Tensor | None,
        rows: Sequence[Tensor],
        lr_scale: float,
        *,
        share: float = 1.0,
        stop: bool = False,
        finite: Callable[[], bool] | None = None,
        ready: Callable[[bool], None] | None = None,
    ) -> Stepped:
        """See `DenseBackend.step`."""
        total = self._backward(loss, share)
        if loss is not None and self.partners.data.size == 1 and can_leave_out(self.optimizer):
            stepped = self._step_ahead(total, rows, lr_scale, stop, finite)
            if ready is not None:
                ready(stepped.accepted)
            return replace(stepped, rescaled=self.scale.update(stepped.accepted))
        seen = self.parameters if finite is not None else (*self.parameters, *rows)
        gradients = [t.grad for t in seen if t.grad is not None]
        right = loss is None or (
            finite_sum(total, gradients) and self._summable(gradients) and (finite is None or finite())
        )
        del gradients  # those that replace them may need their memory
        self.scale.divide([t.grad for t in (*self.parameters, *rows) if t.grad is not None])
        mean = total.item()
        if ready is not None and self.clip_norm is None:
            ready(right)
        stepped = self._agree(Stepped(right, mean, stop), [r.grad for r in rows if r.grad is not None])
        if ready is not None and self.clip_norm is not None:
            ready(stepped.accepted)
        if stepped.accepted:
            self._take(lr_scale)
        return replace(stepped, rescaled=self.scale.update(stepped.accepted))

    def _step_ahead(
        self,
        total: Tensor,
        rows: Sequence[Tensor],
        lr_scale: float,
        stop: bool,
        finite: Callable[[], bool] | None,
    ) -> Stepped:
        """Take a step that the device leaves out if it must: it has its orders before the host knows."""
        of_rows = [row.grad for row in rows if row.grad is not None]
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        if finite is None or any(row.is_cuda for row in rows):  # there `finite` would wait
            right = all_finite(total, [*gradients, *of_rows])
        else:
            right = all_finite(total, gradients) & finite()
        gradients += of_rows
        self.scale.divide(gradients)
        if self.clip_norm is not None and gradients:
            norm = _norms(gradients).norm()
            torch._foreach_mul_(gradients, (self.clip_norm / (norm + 1e-6)).clamp(max=1.0))
        copy = HostCopy(torch.stack([right.double(), total.double()]))
        self._take(lr_scale, refused=~right)
        accepted, mean = copy.wait()
        return Stepped(accepted == 1, mean, stop)

    def _summable(self, gradients: Sequence[Tensor]) -> bool:
        """Return whether the sum of such gradients over the copies cannot overflow."""
        if self._compressed is None:
            return _summable(gradients, self.partners.data.size, LARGEST_SUM)
        terms = [*gradients, *self._compressed.errors.values()]
        return _summable(terms, self.partners.data.size, compressed.LARGEST)

    def _take(self, lr_scale: float, refused: Tensor | None = None) -> None:
        """Take the optimizer step, and drop the gradients: the next forward pass can have their memory."""
        if self.optimizer is not None:
            for group, rate in zip(self.optimizer.param_groups, self._base_rates, strict=True):
                group["lr"] = rate * lr_scale
            if refused is None:
                self.optimizer.step()
            else:
                step_unless(self.optimizer, refused)
            self.optimizer.zero_grad()
            for parameter in self.parameters:
                parameter.grad = None

    def _agree(self, own: Stepped, rows: Sequence[Tensor]) -> Stepped:
        """Sum gradients and verdicts over the partners, and clip."""
        of_rows = squares(rows) if self.clip_norm is not None and own.accepted else 0.0
        if self.partners.data.size > 1:
            own, of_rows = self._reduce(own, of_rows)
        if self.clip_norm is not None and own.accepted:
            dense = [p.grad for p in self.parameters if p.grad is not None]
            norm = math.sqrt(squares(dense) + of_rows)
            factor = min(self.clip_norm / (norm + 1e-6), 1.0)
            for gradient in (*dense, *rows):
                gradient.mul_(factor)
        return own

    def _reduce(self, own: Stepped, of_rows: float) -> tuple[Stepped, float]:
        """Replace the gradients by their mean over the copies of the network, in one sum."""
        copies = self.partners.data
        say = [float(not own.accepted), own.loss if own.accepted else 0.0, of_rows, float(own.stop)]
        if self._compressed is not None:
            said = self._compressed.average(say, refused=not own.accepted)
        else:  # A worker that refuses sends zeros: its NaN would spoil the sums.
            said = average(self.parameters, copies, say, zero=not own.accepted)
        return Stepped(said[0] == 0, said[1] / copies.size, said[3] > 0), said[2] / copies.size**2

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
        """Take over the whole network."""
        if difference := same_shapes(whole.weights, self.model):
            raise ConfigError(
                "the network is not the one that was saved",
                where=difference,
                fix="build it with the arguments it was trained with",
            )
        with torch.no_grad():
            for name, own in self.model.state_dict().items():  # one by one: see `dense.offload`
                own.copy_(in_memory(whole.weights[name]))
        if self.optimizer is not None and whole.optimizer:
            state = whole.optimizer["state"]
            if not isinstance(self.optimizer, OffloadedOptimizer):  # it reads one by one
                state = {
                    number: {k: in_memory(v) for k, v in entry.items()} for number, entry in state.items()
                }
            groups = kept_ways(whole.optimizer["param_groups"], self.optimizer.param_groups)
            self.optimizer.load_state_dict({"state": state, "param_groups": groups})
            self._base_rates = [g["lr"] for g in self.optimizer.param_groups]

    def own(self) -> dict[str, Tensor]:
        """Return copies of the buffers, except in process 0, whose buffers are in `part`, and of errors."""
        kept = {} if self.workers.rank == 0 else dict(self.model.named_buffers())
        if self._compressed is not None:
            kept |= {f"{compressed.KEPT}{name}": t for name, t in self._compressed.state().items()}
        return {name: t.detach().cpu().clone() for name, t in kept.items()}

    def restore_own(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over buffers, and errors if gradients are compressed as they were."""
        own, kept = dict(self.model.named_buffers()), compressed.KEPT
        if self._compressed is not None:
            self._compressed.restore(
                {name.removeprefix(kept): t for name, t in tensors.items() if name.startswith(kept)}
            )
        with torch.no_grad():
            for name, value in tensors.items():
                if not name.startswith(kept):
                    own[name].copy_(value)


def average(
    parameters: Sequence[nn.Parameter], group: Group, say: Sequence[float] = (), *, zero: bool = False
) -> list[float]:
    """Replace gradients by their mean over a group, in one sum of one buffer.

    Args:
        parameters: whose gradients; one that is missing counts as zeros, unless it is missing everywhere.
        group: the processes.
        say: numbers to sum up beside, which are not rounded.
        zero: whether this process gives zeros in place of its gradients.

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
    said = flat[: len(head)].tolist()
    values: Sequence[Tensor] = torch.split(
        flat[len(head) :].div_(group.size), [p.numel() for p in parameters]
    )
    for p, value, uses in zip(parameters, values, said[len(say) :], strict=True):
        p.grad = value.view_as(p).to(p.dtype) if uses else None
    return said[: len(say)]


def finite_sum(loss: Tensor, gradients: Sequence[Tensor]) -> bool:
    """Return whether the loss and all gradients are finite, and so is the sum of each gradient."""
    return bool(all_finite(loss, gradients))


def all_finite(loss: Tensor, gradients: Sequence[Tensor]) -> Tensor:
    """Return what `finite_sum` does, as a truth value on the device of the loss."""
    # A sum is finite only if every term is: one cheap pass without a mask. This also refuses huge finite
    # gradients whose sum overflows, as it should.
    sums = [loss.detach().float(), *(g.sum(dtype=torch.float32).to(loss.device) for g in gradients)]
    return torch.isfinite(torch.stack(sums)).all()


def _summable(gradients: Sequence[Tensor], copies: int, largest: float) -> bool:
    # Before the sum and not after it, because other gradients are sent before it, see `ready` of `step`.
    ends = [end.float().abs() for g in gradients if copies > 1 and g.numel() for end in torch.aminmax(g)]
    return not ends or bool(torch.stack(ends).max() <= largest / copies)


def squares(gradients: Sequence[Tensor]) -> float:
    """Return the sum of squares of all numbers."""
    if not gradients:
        return 0.0
    return float(_norms(gradients).square().sum())


def _norms(gradients: Sequence[Tensor]) -> Tensor:
    return torch.stack([torch.linalg.vector_norm(g.float()).to(gradients[0].device) for g in gradients])
