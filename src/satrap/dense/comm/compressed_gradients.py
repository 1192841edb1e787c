"""Gradient averaging with error feedback that sends far fewer bits than float32."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from satrap.dense.comm.workers import Compression, WorkerGroup

LARGEST = 1e30
"""Largest magnitude of gradients and errors for which no sum overflows: sums have fewer than 2^26 terms."""

KEPT = "gradients/"
"""Prefix of the names of a worker's state between steps."""

_LOOKS = 61
"""The omitted part is measured once per this number of steps."""


class PowerSGD:
    """Replaces the gradients of W copies of a network by an approximate mean.

    A matrix is sent as the product of two thin ones (Vogels et al., arXiv 1905.13727). A weight of n x m
    elements, its first dimension as rows, is sent this way if rank (n + m) is less than n m / 2; other
    weights are summed exactly. One power iteration per step improves the m x rank matrix of the previous
    step: P = the sum of M Q, orthonormal; Q = the mean of M^T P; P Q^T is nearly the mean of M.

    The part of a worker's gradient that a step omits is its error, and is added to its next gradient (error
    feedback): it is applied late, not lost. All workers end with the same bits, if their processors are of
    one kind. If a worker rejects a step, nothing changes.

    Args:
        parameters: their gradients are averaged, in float32; the same in each process.
        group: the workers, with a compression.

    Attributes:
        errors: number of a parameter -> float32, the part of its gradients that has not been applied yet.
        factors: number of a parameter -> its m x rank matrix.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], group: WorkerGroup) -> None:
        assert group.compression is not None
        self.parameters, self.group, self.compression = parameters, group, group.compression
        self.errors = {
            n: torch.zeros_like(p, dtype=torch.float32)
            for n, p in enumerate(parameters)
            if thin(p.shape, self.compression.rank)
        }
        self.factors = {n: self._fresh(n) for n in self.errors}
        self._steps = 0

    def _fresh(self, number: int) -> Tensor:
        """Return the first m x rank matrix of a parameter, the same in each process."""
        error = self.errors[number]
        random, columns = torch.Generator().manual_seed(number), error.numel() // len(error)
        return torch.randn(columns, self.compression.rank, generator=random).to(error.device)

    def average(self, say: Sequence[float], *, refused: bool) -> list[float]:
        """Replace gradients by their mean; a missing one counts as zeros, unless all workers lack it.

        Args:
            say: finite numbers to sum in the same message, exactly.
            refused: whether this worker rejects the step; then its gradients may be anything.

        Returns:
            The sums of `say`; if a worker rejects the step, gradients are dropped.
        """
        head = [float(refused), *say, *(float(p.grad is not None) for p in self.parameters)]
        terms = [self._term(n, p) for n, p in enumerate(self.parameters)]
        for n, q in self.factors.items():
            self.factors[n] = _orthonormal(q if bool(q.any()) else self._fresh(n))
        parts = [_matrix(t) @ self.factors[n] if n in self.factors else t for n, t in enumerate(terms)]
        device = terms[0].device if terms else torch.device("cpu")
        first, *sums = self._sum([torch.tensor(head, device=device), *parts])
        totals, count = first.tolist(), len(say) + 1
        for parameter in self.parameters:
            parameter.grad = None
        if not totals[0]:
            self._steps += 1
            present = [n for n, uses in enumerate(totals[count:]) if uses]
            for n, mean in self._means(terms, sums, present).items():
                self.parameters[n].grad = mean.view_as(self.parameters[n]).to(self.parameters[n].dtype)
        return totals[1:count]

    def _term(self, number: int, parameter: nn.Parameter) -> Tensor:
        """Return a parameter's gradient in float32, plus its error from earlier steps."""
        error, gradient = self.errors.get(number), parameter.grad
        if gradient is None:
            return torch.zeros_like(parameter, dtype=torch.float32) if error is None else error
        return gradient.detach().float() if error is None else gradient.detach() + error

    def _means(
        self, terms: Sequence[Tensor], sums: Sequence[Tensor], used: Sequence[int]
    ) -> dict[int, Tensor]:
        """Return the means of the used parameters by number, and set their errors and factors."""
        short = [n for n in used if n in self.factors]
        bases = [_orthonormal(sums[n]) for n in short]
        products = [_matrix(terms[n]).T @ p for n, p in zip(short, bases, strict=True)]
        if self._steps % _LOOKS == 1:
            whole = _energy([terms[n] for n in short])
            self.compression.note(whole, max(whole - _energy(products), 0.0))
        means = {n: sums[n] / self.group.size for n in used if n not in self.factors}
        for n, p, q in zip(short, bases, self._sum(products), strict=True):
            self.factors[n] = q / self.group.size
            means[n] = (p @ self.factors[n].T).view_as(terms[n])
            self.errors[n] = terms[n] - means[n]
        return means

    def _sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the sums of tensors over the group, in one message."""
        if not tensors:
            return []
        flat = torch.cat([t.reshape(-1) for t in tensors])
        self.group.sum(flat)
        parts: Sequence[Tensor] = torch.split(flat, [t.numel() for t in tensors])
        return [part.view_as(t) for part, t in zip(parts, tensors, strict=True)]

    def state(self) -> dict[str, Tensor]:
        """Return this worker's state between steps, not copied."""
        errors = {f"error.{n}": error for n, error in self.errors.items()}
        return errors | {f"factor.{n}": q for n, q in self.factors.items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore tensors from `state`; missing ones, or ones of another compression, start afresh."""
        for name, tensor in self.state().items():
            if name in tensors and tensors[name].shape == tensor.shape:
                tensor.copy_(tensors[name])


def compressed(parameters: Sequence[nn.Parameter], group: WorkerGroup) -> PowerSGD | None:
    """Return the group's gradient compression, or None if it does not compress."""
    return None if group.compression is None or group.size == 1 else PowerSGD(parameters, group)


def sent_bytes(compression: Compression, shapes: Sequence[Sequence[int]], size: int) -> float:
    """Return the bytes that each of `size` workers sends in a step, by ring algorithms.

    Args:
        compression: the compression.
        shapes: shapes of the parameters.
        size: number of workers, W.
    """
    numbers = sum(
        compression.rank * (shape[0] + math.prod(shape[1:]))
        if thin(shape, compression.rank)
        else math.prod(shape)
        for shape in shapes
    )
    return 2 * (size - 1) / size * 4 * numbers


def kept_bytes(compression: Compression, shapes: Sequence[Sequence[int]]) -> int:
    """Return the bytes of a worker's state between steps, for parameters of these shapes."""
    short = [shape for shape in shapes if thin(shape, compression.rank)]
    return 4 * sum(math.prod(shape[1:]) * (shape[0] + compression.rank) for shape in short)


def thin(shape: Sequence[int], rank: int) -> bool:
    """Return whether "powersgd" sends a parameter as two matrices: they have less than half of its elements.

    The rule is the default of PyTorch's own `PowerSGDState`, `min_compression_rate=2`.
    """
    if len(shape) < 2 or not shape[0]:
        return False
    columns = math.prod(shape[1:])
    return 2 * rank * (shape[0] + columns) < shape[0] * columns


def _energy(tensors: Sequence[Tensor]) -> float:
    return sum(float(t.double().square().sum()) for t in tensors)


def _matrix(tensor: Tensor) -> Tensor:
    return tensor.reshape(len(tensor), -1)


def _orthonormal(matrix: Tensor) -> Tensor:
    basis: Tensor = torch.linalg.qr(matrix).Q
    return basis.contiguous()
