"""DLRM's dot interaction on a CUDA device: PyTorch's operations against one kernel each way.

`python -m benchmarks.gpu.dot_interaction` prints milliseconds, and the rate of the bytes that must be read
and written as a share of a copy's rate. With `--sweep`, also of the kernels alone with other constants.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.record import write
from satrap.models.layers import interaction
from satrap.models.layers.interaction import DotInteraction

SIZES = (16_384, 65_536)
FIELDS, DIM = 27, 128
SETS = 4
"""Sets of inputs that a graph reads in turn, so that a cache does not hold them."""
ROUNDS = 20
SWEEP = {"samples": (1, 4, 16), "warps": (1, 2, 4, 8), "stages": (1, 2, 3)}


def milliseconds(step: Callable[[int], object], device: str, *, graph: bool = True) -> float:
    """The median time of step(number of a set); on a device without graphs, of one call."""
    if device == "cpu":
        start = time.perf_counter()
        step(0)
        return 1000 * (time.perf_counter() - start)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # compiles
        step(0)
    torch.cuda.current_stream().wait_stream(side)

    def run() -> None:
        for number in range(SETS):
            step(number)

    if graph:
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            run()
        run = captured.replay
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(ROUNDS + 4)]
    for mark in marks:
        run()
        mark.record()
    torch.cuda.synchronize()
    return statistics.median(one.elapsed_time(two) for one, two in itertools.pairwise(marks[3:])) / SETS


def copy_rate(numbers: int, device: str) -> float:
    """Bytes per second that a copy reads and writes; in a graph, it would be a slower operation."""
    one, two = torch.ones(2, numbers, device=device)
    return 2000 * one.nbytes / milliseconds(lambda _: two.copy_(one), device, graph=False)


@contextmanager
def kernels_on(*devices: str) -> Iterator[None]:
    before, interaction._KERNELS_ON = interaction._KERNELS_ON, set(devices)
    try:
        yield
    finally:
        interaction._KERNELS_ON = before


def compared(size: int, fields: int, dim: int, device: str, rate: float, *, sweep: bool) -> dict[str, Any]:
    """Milliseconds and shares of the copy rate for a batch in bfloat16, by way."""
    shapes = (size, fields - 1, dim), (size, dim)
    given = [
        [torch.randn(shape, device=device, dtype=torch.bfloat16).requires_grad_() for shape in shapes]
        for _ in range(SETS)
    ]
    layer = DotInteraction(fields).to(device)
    grad = torch.randn_like(layer(*given[0]))
    vectors, result = size * fields * dim * 2, grad.nbytes
    necessary = {"forward": vectors + result, "backward": 2 * vectors + result}
    necessary["both"] = sum(necessary.values())
    found: dict[str, Any] = {}

    def note(name: str, part: str, taken: float) -> None:
        found[f"{name}, {part}"] = {"ms": taken, "share": 1000 * necessary[part] / taken / rate}
        print(
            f"{size:7} {name:44} {part:9}{taken:9.4f} ms {found[f'{name}, {part}']['share']:6.2f} of a copy"
        )

    def forward(number: int) -> Tensor:
        with torch.no_grad():
            return layer(*given[number])  # type: ignore[no-any-return]

    def both(number: int) -> object:
        return torch.autograd.grad(layer(*given[number]), given[number], grad)

    for name, devices in (("PyTorch's operations", ()), ("kernels", (device,))):
        with kernels_on(*devices):
            note(name, "forward", milliseconds(forward, device))
            note(name, "both", milliseconds(both, device))
    if sweep:
        alone(given, grad, device, note)
    return found


def alone(
    given: list[list[Tensor]], grad: Tensor, device: str, note: Callable[[str, str, float], None]
) -> None:
    """Time each kernel with other numbers of samples, warps and stages than its own."""
    from triton.errors import TritonError

    from satrap.models.kernels import dot_interaction as kernels

    _, fields, dim = given[0][0].shape
    out, gradients = torch.empty_like(grad), [torch.empty_like(tensor) for tensor in given[0]]
    usual = kernels.options(kernels.VectorShape(fields + 1, dim, 1), grad.dtype)
    for samples, warps, stages in itertools.product(*SWEEP.values()):
        tile = usual["TILE"]._replace(samples=samples)
        chosen = {**usual, "TILE": tile, "num_warps": warps, "num_stages": stages}
        for part, kernel, results in (
            ("forward", kernels.products, [out]),
            ("backward", kernels.gradients, [grad, *gradients]),
        ):

            def step(number: int, kernel: Any = kernel, results: Any = results, chosen: Any = chosen) -> None:
                kernels.launch(kernel, [*(x.detach() for x in given[number]), *results], chosen)

            name = f"{samples} samples, {warps} warps, {stages} stages"
            try:
                note(name, part, milliseconds(step, device))
            except TritonError as error:  # too much shared memory, or too few registers
                print(f"{name}, {part}: {str(error).splitlines()[0]}")


def measure(
    sizes: tuple[int, ...] = SIZES,
    fields: int = FIELDS,
    dim: int = DIM,
    device: str = "cuda",
    *,
    copied: int = 2**30,
    sweep: bool = False,
) -> dict[str, Any]:
    """Return the copy rate, of float32[copied], and the figures of `compared` by size of the batch."""
    rate = copy_rate(copied, device)
    print(f"a copy reads and writes {rate / 1e12:.3f} TB/s")
    return {
        "copy_bytes_per_second": rate,
        "ways": {size: compared(size, fields, dim, device, rate, sweep=sweep) for size in sizes},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweep", action="store_true", help="also other constants of the kernels: a minute")
    options = parser.parse_args()
    parameters = {"fields": FIELDS, "dim": DIM, "dtype": "bfloat16", "device": torch.cuda.get_device_name()}
    print(write(Path(__file__).parent / "results", parameters, measure(sweep=options.sweep)))


if __name__ == "__main__":
    main()
