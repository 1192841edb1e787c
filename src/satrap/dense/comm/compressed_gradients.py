"""Gradient averaging with error feedback that sends far fewer bits than float32."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from satrap.dense.comm.workers import Compression, WorkerGroup

LARGEST = 1e30
"""Largest magnitude of gradients and errors for which no sum overflows: sums have fewer than 2^26 terms."""

KEPT = "gradients/"
"""Prefix of the names of a worker's state between steps."""

_LOOKS = 61
"""The omitted part is measured once per this number of steps."""

_ONES = 0x0102040810204080
"""Multiplied with eight bytes that are 0 or 1, an int64, it collects their bits in the highest byte."""


class Compressed(ABC):
    """Replaces the gradients of W copies of a network by an approximate mean.

    The part of a worker's gradient that a step omits is its error, and is added to its next gradient (error
    feedback): it is applied late, not lost. All workers end with the same bits, if their processors are of
    one kind. If a worker rejects a step, nothing changes.

    Args:
        parameters: their gradients are averaged, in float32; the same in each process.
        group: the workers.
        rank: rank of the products of "powersgd".

    Attributes:
        errors: number of a parameter -> float32, the part of its gradients that has not been applied yet.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], group: WorkerGroup, rank: int) -> None:
        self.parameters, self.group, self.rank = parameters, group, rank
        self.errors = {n: torch.zeros_like(p, dtype=torch.float32) for n, p in self._short()}
        self._steps = 0

    def _short(self) -> list[tuple[int, nn.Parameter]]:
        """Return the parameters whose gradients are compressed, with their numbers."""
        return list(enumerate(self.parameters))

    def average(self, say: Sequence[float], *, refused: bool) -> list[float]:
        """Replace gradients by their mean; a missing one counts as zeros, unless all workers lack it.

        Args:
            say: finite numbers to sum in the same message, exactly.
            refused: whether this worker rejects the step; then its gradients may be anything.

        Returns:
            The sums of `say`; if a worker rejects the step, gradients are dropped.
        """
        head = [float(refused), *say, *(float(p.grad is not None) for p in self.parameters)]
        terms = [self._given(n, p) for n, p in enumerate(self.parameters)]
        totals, sums = self._first(head, terms)
        count = len(say) + 1
        for parameter in self.parameters:
            parameter.grad = None
        if not totals[0]:
            self._steps += 1
            present = [n for n, uses in enumerate(totals[count:]) if uses]
            for n, mean in self._second(terms, sums, present):
                self.parameters[n].grad = mean.view_as(self.parameters[n]).to(self.parameters[n].dtype)
        return totals[1:count]

    def _given(self, number: int, parameter: nn.Parameter) -> Tensor:
        """Return a parameter's gradient in float32, plus its error from earlier steps."""
        error, gradient = self.errors.get(number), parameter.grad
        if gradient is None:
            return torch.zeros_like(parameter, dtype=torch.float32) if error is None else error
        return gradient.detach().float() if error is None else gradient.detach() + error

    @abstractmethod
    def _first(self, head: Sequence[float], given: Sequence[Tensor]) -> tuple[list[float], Any]:
        """Send the first, or only, message; return the sums of `head` and what `_second` needs."""

    @abstractmethod
    def _second(self, given: Sequence[Tensor], came: Any, used: Sequence[int]) -> list[tuple[int, Tensor]]:
        """Return number and mean of the used parameters, and set their errors."""

    def _note(
        self, whole: Sequence[Tensor], *, left: Sequence[Tensor] = (), kept: Sequence[Tensor] = ()
    ) -> None:
        """Measure now and then how much of `whole` is omitted: `left`, or everything but `kept`."""
        if self._steps % _LOOKS == 1 and self.group.compression is not None:
            total = _energy(whole)
            self.group.compression.note(total, _energy(left) if left else max(total - _energy(kept), 0.0))

    def state(self) -> dict[str, Tensor]:
        """Return this worker's state between steps, not copied."""
        return {f"error.{n}": error for n, error in self.errors.items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore tensors from `state`; missing ones, or ones of another compression, start afresh."""
        for name, tensor in self.state().items():
            if name in tensors and tensors[name].shape == tensor.shape:
                tensor.copy_(tensors[name])


class PowerSGD(Compressed):
    """Sends a matrix as the product of two thin ones (Vogels et al., arXiv 1905.13727).

    A weight of n x m elements, its first dimension as rows, is sent this way if rank (n + m) is less than n m
    / 2; other weights are summed exactly. One power iteration per step improves the m x rank matrix of the
    previous step: P = the sum of M Q, orthonormal; Q = the mean of M^T P; P Q^T is nearly the mean of M.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], group: WorkerGroup, rank: int) -> None:
        super().__init__(parameters, group, rank)
        self.factors = {n: self._fresh(n) for n in self.errors}

    def _short(self) -> list[tuple[int, nn.Parameter]]:
        return [(n, p) for n, p in enumerate(self.parameters) if thin(p.shape, self.rank)]

    def _fresh(self, number: int) -> Tensor:
        """Return the first m x rank matrix of a parameter, the same in each process."""
        error = self.errors[number]
        random = torch.Generator().manual_seed(number)
        return torch.randn(error.numel() // len(error), self.rank, generator=random).to(error.device)

    def _first(self, head: Sequence[float], given: Sequence[Tensor]) -> tuple[list[float], Any]:
        for n, q in self.factors.items():
            self.factors[n] = _orthonormal(q if bool(q.any()) else self._fresh(n))
        parts = [_matrix(t) @ self.factors[n] if n in self.factors else t for n, t in enumerate(given)]
        sums = self._sum([torch.tensor(head, device=_device(given)), *parts])
        return sums[0].tolist(), sums[1:]

    def _second(self, given: Sequence[Tensor], came: Any, used: Sequence[int]) -> list[tuple[int, Tensor]]:
        short = [n for n in used if n in self.factors]
        bases = [_orthonormal(came[n]) for n in short]
        products = [_matrix(given[n]).T @ p for n, p in zip(short, bases, strict=True)]
        self._note([given[n] for n in short], kept=products)
        means = {n: came[n] / self.group.size for n in used if n not in self.factors}
        for n, p, q in zip(short, bases, self._sum(products), strict=True):
            self.factors[n] = q / self.group.size
            means[n] = (p @ self.factors[n].T).view_as(given[n])
            self.errors[n] = given[n] - means[n]
        return sorted(means.items())

    def _sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the sums of tensors over the group, in one message."""
        if not tensors:
            return []
        flat = torch.cat([t.reshape(-1) for t in tensors])
        self.group.sum(flat)
        parts: Sequence[Tensor] = torch.split(flat, [t.numel() for t in tensors])
        return [part.view_as(t) for part, t in zip(parts, tensors, strict=True)]

    def state(self) -> dict[str, Tensor]:
        """See `Compressed.state`."""
        return {**super().state(), **{f"factor.{n}": q for n, q in self.factors.items()}}


class Sign(Compressed):
    """Sends signs, with each parameter's mean magnitude (Karimireddy et al., arXiv 1901.09847).

    Each worker receives the signs of all others, and computes the mean of scale times sign.
    """

    def _first(self, head: Sequence[float], given: Sequence[Tensor]) -> tuple[list[float], Any]:
        scales = [t.abs().mean(dtype=torch.float64).float() if t.numel() else t.sum() for t in given]
        first = torch.cat([torch.tensor(head, device=_device(given)), *(s.view(1) for s in scales)])
        flat = torch.cat([t.reshape(-1) for t in given]) if given else first[:0]
        came = self.group.all_gather(torch.cat([first.view(torch.uint8), _packed(flat >= 0)]))
        heads = came[:, : 4 * len(first)].contiguous().view(torch.float32)
        return heads[:, : len(head)].sum(0).tolist(), (heads[:, len(head) :], came[:, 4 * len(first) :])

    def _second(self, given: Sequence[Tensor], came: Any, used: Sequence[int]) -> list[tuple[int, Tensor]]:
        scales, bits = came
        sizes = [t.numel() for t in given]
        means = {n: torch.zeros_like(given[n]) for n in used}
        for worker, (own_scales, own_bits) in enumerate(zip(scales, bits, strict=True)):
            signs = _signs(own_bits)[: sum(sizes)].split(sizes)  # type: ignore[no-untyped-call]
            for n in used:
                sent = own_scales[n] * signs[n].view_as(given[n])
                means[n] += sent
                if worker == self.group.rank:
                    self.errors[n] = given[n] - sent
        self._note([given[n] for n in used], left=[self.errors[n] for n in used])
        return [(n, mean / self.group.size) for n, mean in means.items()]


KINDS: dict[str, type[Compressed]] = {"powersgd": PowerSGD, "sign": Sign}


def compressed(parameters: Sequence[nn.Parameter], group: WorkerGroup) -> Compressed | None:
    """Return the group's gradient compression, or None if it does not compress."""
    kind = group.compression
    return None if kind is None or group.size == 1 else KINDS[kind.kind](parameters, group, kind.rank)


def sent_bytes(compression: Compression, shapes: Sequence[Sequence[int]], size: int) -> float:
    """Return the bytes that each of `size` workers sends in a step, by ring algorithms.

    Args:
            compression: the compression.
            shapes: shapes of the parameters.
            size: number of workers, W.
    """
    counts = [math.prod(shape) for shape in shapes]
    if compression.kind == "sign":
        return (size - 1) * (math.ceil(sum(counts) / 8) + 4 * len(counts))
    numbers = sum(
        compression.rank * (shape[0] + count // shape[0]) if thin(shape, compression.rank) else count
        for shape, count in zip(shapes, counts, strict=True)
    )
    return 2 * (size - 1) / size * 4 * numbers


def kept_bytes(compression: Compression, shapes: Sequence[Sequence[int]]) -> int:
    """Return the bytes of a worker's state between steps, for parameters of these shapes."""
    if compression.kind == "sign":
        return 4 * sum(map(math.prod, shapes))
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


def _device(tensors: Sequence[Tensor]) -> torch.device:
    return tensors[0].device if tensors else torch.device("cpu")


def _packed(bits: Tensor) -> Tensor:
    """Return bool[n] as uint8[n / 8], padded with zeros."""
    eights = nn.functional.pad(bits.view(torch.uint8), (0, -len(bits) % 8)).view(torch.int64)
    return ((eights * _ONES) >> 56).to(torch.uint8)


def _signs(packed: Tensor) -> Tensor:
    """Return uint8[n] as float32[8 n] of 1 and -1."""
    every = torch.arange(256, device=packed.device)[:, None] >> torch.arange(8, device=packed.device)
    return nn.functional.embedding(packed.int(), ((every & 1) * 2 - 1).float()).view(-1)
