"""The dense side of a step: backward, sum over the workers, finite check, clipping, optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from satrap.dense.workers import Workers
from satrap.exchange import Exchange, Request, TableGroup
from satrap.schema import Table

MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
Rows = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Stepped:
    """The result of a step; equal on all workers that step together.

    Args:
        accepted: False if loss or a gradient of any worker was not finite; then nothing has changed.
        loss: mean over the samples of all workers.
        stop: whether any worker was asked to stop.
    """

    accepted: bool
    loss: float
    stop: bool


class DenseStep:
    """Owns the network's optimizer and decides whether a step may happen.

    Several workers add their gradients in one all-reduce of one buffer. The buffer also carries the verdict
    of each worker, so that all take the same step or none does.

    Args:
        model: the network.
        make: makes its optimizer from the list of trainable parameters, or None.
        clip_norm: limit of the global gradient norm over parameters and rows; None: no clipping. With W
            workers it is the root of |d|^2 + sum over workers of |g_w / W|^2, where d is the mean gradient of
            the parameters and g_w what worker w pushes for its rows. In `hybrid` each push is one update.
            In `sync` a row that several workers use gets one update with the summed gradient. Only the shards
            know its norm, which is at most sqrt(W) times the norm counted here.
        workers: the workers that take the step together, default this one alone.
    """

    tables: Sequence[Table] = ()
    """Tables that this way of stepping needs in the store."""

    def __init__(
        self,
        model: nn.Module,
        make: MakeOptimizer | None,
        clip_norm: float | None,
        workers: Workers | None = None,
    ) -> None:
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.workers = workers or Workers()
        self.trainable = make is not None
        self.optimizer = make(self.parameters) if make is not None and self.parameters else None
        self.clip_norm = clip_norm
        self._base_rates = [g["lr"] for g in self.optimizer.param_groups] if self.optimizer else []

    def attach(self, groups: Sequence[TableGroup]) -> None:
        """Find `tables` among the exchange's groups."""

    @property
    def requests(self) -> Sequence[Request]:
        """What every lookup and update must ask for besides the batch's rows."""
        return ()

    def seed(self, exchange: Exchange) -> None:
        """Put the present weights into the store, where `tables` hold them."""

    def refresh(self, exchange: Exchange) -> None:
        """Pull the newest weights, where `tables` hold them."""

    def pull(self, rows: Sequence[Rows]) -> None:
        """Take over the answers to `requests`."""

    def push(self) -> list[Rows]:
        """Return the gradients for `requests`, after an accepted `step`."""
        return []

    def clear(self) -> None:
        """Forget old gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    def step(
        self,
        loss: Tensor | None,
        rows: Sequence[Tensor],
        lr_scale: float,
        *,
        share: float = 1.0,
        stop: bool = False,
        finite: Callable[[], bool] | None = None,
    ) -> Stepped:
        """Compute gradients and take the optimizer step, unless loss or a gradient is not finite.

        Args:
            loss: mean loss of this worker's batch; None without a batch.
            rows: embedding leaves; their gradients take part in the check and in the clipping norm.
            lr_scale: factor on the optimizer's learning rates.
            share: factor on the loss that makes the mean over workers the mean over all samples.
            stop: whether this worker was asked to stop.
            finite: returns, after the backward pass, whether the gradients of `rows` are finite; default:
                checked here.
        """
        self.clear()
        if loss is not None:
            (loss if share == 1.0 else loss * share).backward()  # type: ignore[no-untyped-call]
        seen = self.parameters if finite is not None else (*self.parameters, *rows)
        gradients = [t.grad for t in seen if t.grad is not None]
        right = loss is None or (self._finite(loss, gradients) and (finite is None or finite()))
        mean = 0.0 if loss is None else loss.item() * share
        stepped = self._agree(Stepped(right, mean, stop), [r.grad for r in rows if r.grad is not None])
        if stepped.accepted:
            self._apply(lr_scale)
        return stepped

    def _agree(self, own: Stepped, rows: Sequence[Tensor]) -> Stepped:
        """Sum gradients and verdicts over the workers, and clip."""
        squares = _squares(rows) if self.clip_norm is not None and own.accepted else 0.0
        if self.workers.data.size > 1:
            own, squares = self._reduce(own, squares)
        if self.clip_norm is not None and own.accepted:
            dense = [p.grad for p in self.parameters if p.grad is not None]
            norm = math.sqrt(_squares(dense) + squares)
            factor = min(self.clip_norm / (norm + 1e-6), 1.0)
            for gradient in (*dense, *rows):
                gradient.mul_(factor)
        return own

    def _reduce(self, own: Stepped, squares: float) -> tuple[Stepped, float]:
        """Replace the gradients by their mean over the workers, in one all-reduce."""
        parameters, copies = self.parameters, self.workers.data
        used = [float(p.grad is not None) for p in parameters]
        # A worker that refuses sends zeros: its NaN would spoil the sums.
        say = [float(not own.accepted), own.loss if own.accepted else 0.0, squares, float(own.stop), *used]
        zero = not own.accepted
        parts = [
            torch.zeros_like(p, dtype=torch.float32).view(-1)
            if p.grad is None or zero
            else p.grad.detach().float().reshape(-1)
            for p in parameters
        ]
        device = parameters[0].device if parameters else torch.device("cpu")
        flat = torch.cat([torch.tensor(say, device=device), *parts])
        copies.sum(flat)
        said = flat[: len(say)].tolist()
        values: Sequence[Tensor] = torch.split(
            flat[len(say) :] / copies.size, [p.numel() for p in parameters]
        )
        for p, value, uses in zip(parameters, values, said[4:], strict=True):
            p.grad = value.view_as(p).to(p.dtype) if uses else None
        return Stepped(said[0] == 0, said[1] / copies.size, said[3] > 0), said[2] / copies.size**2

    def _apply(self, lr_scale: float) -> None:
        if self.optimizer is not None:
            for group, rate in zip(self.optimizer.param_groups, self._base_rates, strict=True):
                group["lr"] = rate * lr_scale
            self.optimizer.step()

    @staticmethod
    def _finite(loss: Tensor, gradients: Sequence[Tensor]) -> bool:
        # A sum is finite only if every term is: one cheap pass without a mask. This also refuses huge finite
        # gradients whose sum overflows, as it should.
        sums = torch.stack([loss.detach().float(), *(g.sum(dtype=torch.float32) for g in gradients)])
        return bool(torch.isfinite(sums).all())

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state, with the base learning rates."""
        if self.optimizer is None:
            return {}
        state = self.optimizer.state_dict()
        for group, rate in zip(state["param_groups"], self._base_rates, strict=True):
            group["lr"] = rate
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved state; ignored by a trainer that only evaluates."""
        if self.optimizer is not None and state:
            self.optimizer.load_state_dict(state)
            self._base_rates = [g["lr"] for g in self.optimizer.param_groups]


def _squares(gradients: Sequence[Tensor]) -> float:
    """Return the sum of squares of all numbers."""
    if not gradients:
        return 0.0
    return float(torch.stack([torch.linalg.vector_norm(g.float()) for g in gradients]).square().sum())
