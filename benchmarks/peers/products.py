"""The three products of a linear layer by oneDNN and by PyTorch's BLAS library: processor ms of one thread.

`python -m benchmarks.peers.products` writes the raw figures to results/products.json, by which
`satrap.models.layers.linear` chooses.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import satrap  # noqa: F401  isort: skip  # before torch, like satrap's programs: see satrap.runtime.threads
import torch

from benchmarks.record import write

BATCH, INPUTS, OUTPUTS, REPEATS = 4096, (64, 429, 1677), (8, 64, 256), 15


def milliseconds(product: Callable[[], object]) -> float:
    """Return the median processor time of a product."""
    times = []
    for _ in range(REPEATS):
        start = time.thread_time()
        product()
        times.append(1e3 * (time.thread_time() - start))
    return round(statistics.median(times), 2)


def by_onednn(x: torch.Tensor, weight: torch.Tensor) -> object:
    """Return `x @ weight.T`."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")


def measure(inputs: int, outputs: int) -> dict[str, Any]:
    """Return the times of the forward product and of both gradients, by both libraries."""
    x, weight = torch.randn(BATCH, inputs), torch.randn(outputs, inputs)
    gradient = torch.randn(BATCH, outputs)
    products: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "forward": (lambda: by_onednn(x, weight), lambda: x @ weight.T),
        "gradient of the input": (lambda: by_onednn(gradient, weight.T), lambda: gradient @ weight),
        "gradient of the weight": (
            lambda: by_onednn(gradient.T.contiguous(), x.T),
            lambda: gradient.T @ x,
        ),
    }
    return {
        name: {"onednn_ms": milliseconds(one), "blas_ms": milliseconds(other)}
        for name, (one, other) in products.items()
    }


def main() -> None:
    """Measure, print and record."""
    torch.set_num_threads(1)
    results = {}
    for inputs in INPUTS:
        for outputs in OUTPUTS:
            results[f"{inputs} to {outputs}"] = measure(inputs, outputs)
            print(f"{inputs} to {outputs}", results[f"{inputs} to {outputs}"], flush=True)
    folder = Path(__file__).parent / "results"
    print(write(folder, {"batch": BATCH, "repeats": REPEATS}, results, folder / "products.json"))


if __name__ == "__main__":
    main()
