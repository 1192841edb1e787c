"""Times of work on a device, and the rate of a copy there, the limit of all that moves memory."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from functools import cached_property

import torch

from satrap.store.gpu.device import interpreted


class Timing:
    """Measures on the first CUDA device; in Triton's interpreter on the CPU, in small.

    Attributes:
        small: whether this is the interpreter.
        device, name: the device.
    """

    def __init__(self) -> None:
        self.small = interpreted()
        if not self.small and not torch.cuda.is_available():
            raise SystemExit("this benchmark needs a CUDA device, or TRITON_INTERPRET=1 to run in small")
        self.device = torch.device("cpu" if self.small else "cuda")
        self.name = "Triton's interpreter" if self.small else torch.cuda.get_device_name()

    def milliseconds(self, step: Callable[[int], object], *, rounds: int = 20, warm_up: int = 5) -> float:
        """Return the median milliseconds of step(number of the call), eager, as the device sees them."""
        if self.small:
            start = time.perf_counter()
            step(0)
            return 1000 * (time.perf_counter() - start)
        for number in range(warm_up):
            step(number)
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(rounds + 1)]
        for number, mark in enumerate(marks):
            mark.record()
            if number < rounds:
                step(warm_up + number)
        torch.cuda.synchronize()
        return statistics.median(one.elapsed_time(two) for one, two in itertools.pairwise(marks))

    @cached_property
    def copy_rate(self) -> float:
        """Bytes read and written per second by a copy of 4 GiB."""
        numbers = torch.ones((1 << 12) if self.small else (1 << 30), device=self.device)
        to = torch.empty_like(numbers)
        return 2 * numbers.nbytes / self.milliseconds(lambda _: to.copy_(numbers)) * 1e3

    def share(self, size: float, milliseconds: float) -> float:
        """Return the rate of moving `size` bytes in this time, as a share of the copy's."""
        return size / milliseconds * 1e3 / self.copy_rate
