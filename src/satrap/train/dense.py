"""The dense side of a step: backward, the finite check, clipping, the optimizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn


class DenseStep:
    """Owns the network's optimizer and decides whether a step may happen.

    Args:
        model: the network.
        make: makes its optimizer from the list of trainable parameters, or None.
        clip_norm: limit of the global gradient norm over parameters and rows; None: no clipping.
    """

    def __init__(
        self,
        model: nn.Module,
        make: Callable[[list[nn.Parameter]], torch.optim.Optimizer] | None,
        clip_norm: float | None,
    ) -> None:
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.trainable = make is not None
        self.optimizer = make(self.parameters) if make is not None and self.parameters else None
        self.clip_norm = clip_norm
        self._base_rates = [g["lr"] for g in self.optimizer.param_groups] if self.optimizer else []

    def backward(self, loss: Tensor) -> None:
        """Clear old gradients and compute new ones."""
        if self.optimizer is not None:
            self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]

    def step(self, loss: Tensor, rows: Sequence[Tensor], lr_scale: float) -> bool:
        """Take the optimizer step unless loss or a gradient is not finite.

        Args:
            loss: the scalar that `backward` was called with.
            rows: embedding leaves; their gradients take part in the check and in the clipping norm.
            lr_scale: factor on the optimizer's learning rates.

        Returns:
            False when the step was refused: nothing has changed.
        """
        gradients = [t.grad for t in (*self.parameters, *rows) if t.grad is not None]
        if not self._finite(loss, gradients):
            return False
        if self.clip_norm is not None:
            _clip(gradients, self.clip_norm)
        if self.optimizer is not None:
            for group, rate in zip(self.optimizer.param_groups, self._base_rates, strict=True):
                group["lr"] = rate * lr_scale
            self.optimizer.step()
        return True

    @staticmethod
    def _finite(loss: Tensor, gradients: Sequence[Tensor]) -> bool:
        # A sum is finite only if every term is: one cheap pass, no temporary mask. Huge finite gradients
        # whose sum overflows are refused as well, which is what one wants.
        sums = torch.stack([loss.detach().float(), *(g.sum().float() for g in gradients)])
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


def _clip(gradients: Sequence[Tensor], limit: float) -> None:
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradients]))
    factor = (limit / (norm + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factor)
