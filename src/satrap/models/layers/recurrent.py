"""A recurrent network over sequences of different lengths, without padding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from satrap.models.layers.linear import linear


@dataclass(frozen=True, slots=True)
class Steps:
    """The order in which a recurrence computes events: the first of all sequences, then the second, ...

    In a step, longer sequences come first, so the sequences of the next step are the first of this one.

    Args:
        order: int64[n], the event computed at each place.
        places: int64[n], the place of each event.
        counts: events of each step, descending.
    """

    order: Tensor
    places: Tensor
    counts: list[int]


def steps_of(bounds: npt.NDArray[np.int64], device: torch.device) -> Steps:
    """Return the steps of sequences.

    Args:
        bounds: int64[sequences + 1]; sequence `i` has the events `bounds[i]..bounds[i + 1]`, possibly none.
        device: device of the tensors.
    """
    lengths = np.diff(bounds)
    longest = np.argsort(-lengths, kind="stable")
    step = np.arange(lengths.max(initial=0))[:, None]
    there = step < lengths[longest]
    order = (bounds[:-1][longest] + step)[there]
    order_, places = (torch.from_numpy(x).to(device) for x in (order, np.argsort(order)))
    return Steps(order_, places, there.sum(1).tolist())


class GRU(nn.Module):
    """`h_j = (1 - u) h_{j-1} + u tanh(W x_j + r (U h_{j-1} + b))`, where `r` and `u` are gates.

    Cho et al., "Learning Phrase Representations", EMNLP 2014, as in `torch.nn.GRU`, except that u is the part
    that is new; weights start as there. With `gate`, u is multiplied by it: the AUGRU of Zhou et al., "Deep
    Interest Evolution Network", AAAI 2019, section 4.3. The first h is 0. No second gradients.

    Args:
        inputs: columns of an event.
        width: columns of a state.

    Attributes:
        weight_ih, weight_hh: float32[3 * width, inputs] and float32[3 * width, width], for r, u and the new
            state.
        bias_ih, bias_hh: float32[3 * width].
    """

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.weight_ih = nn.Parameter(torch.empty(3 * width, inputs))
        self.weight_hh = nn.Parameter(torch.empty(3 * width, width))
        self.bias_ih = nn.Parameter(torch.empty(3 * width))
        self.bias_hh = nn.Parameter(torch.empty(3 * width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the initial weights."""
        for parameter in self.parameters():
            bound = self.weight_hh.shape[1] ** -0.5
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, x: Tensor, steps: Steps, gate: Tensor | None = None) -> Tensor:
        """Return the state after each event, float32[n, width].

        Args:
            x: float32[n, inputs].
            steps: of the sequences of these events.
            gate: float32[n, 1], factors of u, or None.
        """
        made = linear(x.index_select(0, steps.order), self.weight_ih, self.bias_ih)
        gate = None if gate is None else gate.index_select(0, steps.order).to(self.weight_hh.dtype)
        with torch.autocast(x.device.type, enabled=False):
            states: Tensor = _Recurrence.apply(  # type: ignore[no-untyped-call]
                made.to(self.weight_hh.dtype), self.weight_hh, self.bias_hh, gate, steps.counts
            )
        return states.index_select(0, steps.places)


class _Recurrence(torch.autograd.Function):
    """The states in the order of steps; autograd would take most of the time of a step's small operations.

    `made`, the products with the inputs, is float[n, 3 * width].
    """

    @staticmethod
    def forward(
        ctx: Any, made: Tensor, weight: Tensor, bias: Tensor, gate: Tensor | None, counts: list[int]
    ) -> Tensor:
        width = weight.shape[1]
        gates, state = made.new_empty(len(made), 2 * width), made.new_zeros(counts[0] if counts else 0, width)
        old, new, fed, states = (made.new_empty(len(made), width) for _ in range(4))
        start = 0
        for count in counts:
            at = slice(start, start := start + count)
            old[at] = state[:count]
            product = torch.addmm(bias, old[at], weight.T)
            r, u = (
                torch.add(made[at, : 2 * width], product[:, : 2 * width], out=gates[at])
                .sigmoid_()
                .chunk(2, 1)
            )
            fed[at] = product[:, 2 * width :]
            torch.addcmul(made[at, 2 * width :], r, fed[at], out=new[at]).tanh_()
            state = torch.lerp(old[at], new[at], u if gate is None else u * gate[at], out=states[at])
        ctx.counts = counts
        ctx.save_for_backward(weight, gates, old, new, fed, *([] if gate is None else [gate]))
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        weight, gates, old, new, fed, *gate = ctx.saved_tensors
        r, u = gates.chunk(2, 1)
        factor = gate[0] if gate else 1.0
        share = u * factor
        of_new = share * (1 - new * new)  # of the argument of tanh, by the gradient of the state
        of_gates = torch.stack(
            [of_new * fed * r * (1 - r), (new - old) * factor * u * (1 - u), of_new * r], dim=1
        )
        [gradient], stays = gradients, 1 - share
        gradient, back_gates = gradient.clone(), torch.empty_like(of_gates)
        stop = len(gradient)
        before: Tensor | None = None
        for count in reversed(ctx.counts):
            at = slice(stop - count, stop)
            if before is not None:
                gradient[at][: len(before)] += before
            torch.mul(of_gates[at], gradient[at].unsqueeze(1), out=back_gates[at])
            before = torch.addmm(gradient[at] * stays[at], back_gates[at].flatten(1), weight)
            stop -= count
        back_gates = back_gates.flatten(1)
        made = torch.cat([back_gates[:, : 2 * weight.shape[1]], gradient * of_new], dim=1)
        of_factor = (gradient * (new - old) * u).sum(1, keepdim=True) if gate else None
        return made, back_gates.T @ old, back_gates.sum(0), of_factor, None
