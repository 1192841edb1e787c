"""Compiles the kernels for GPUs that need not be there, in a process without the interpreter.

Prints a line of JSON for each. `python -m tests.models.kernels.compiled`, with Triton on the path.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget

from satrap.models.kernels import dot_interaction as kernels

SHORT, LONG = torch.bfloat16, torch.float32

EVERYWHERE = [(27, 128, True, SHORT, SHORT), (64, 256, False, SHORT, SHORT)]
"""Fields, dim, whether the first vector is apart, types of the block and of the factors."""
HOPPER = [(27, 128, True, LONG, SHORT), (2, 16, True, SHORT, SHORT), (33, 20, False, SHORT, SHORT)]
TYPES_OF_FLOAT32 = [(27, 128, True, LONG, LONG), (64, 256, True, LONG, LONG)]


def cases() -> Iterator[tuple[int, str, tuple[Any, ...]]]:
    for architecture in (80, 90, 100):
        for case in EVERYWHERE + HOPPER * (architecture == 90):
            yield architecture, "ieee", case
    for precision in ("ieee", "tf32"):
        for case in TYPES_OF_FLOAT32:
            yield 90, precision, case


class AbsentGpu:
    """A driver that launches nothing."""

    def __init__(self, architecture: int) -> None:
        self._target = GPUTarget("cuda", architecture, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return self._target.arch

    def get_current_stream(self, device: int) -> int:
        return device


def built(
    kernel: Any, architecture: int, options: dict[str, Any], types: list[torch.dtype]
) -> dict[str, Any]:
    """The facts about one compiled kernel."""
    triton.runtime.driver.set_active(AbsentGpu(architecture))
    made = kernel.warmup(*types, 65_536, grid=(1,), **options)
    ptx = made.asm["ptx"]
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        tool = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        usage = subprocess.run(tool, capture_output=True, text=True, check=True).stdout
    return {
        "kernel": kernel.fn.__name__,
        "architecture": architecture,
        "stack": int(re.findall(r"STACK:(\d+)", usage)[0]),
        "registers": int(re.findall(r"REG:(\d+)", usage)[0]),
        "shared": made.metadata.shared,
        "matrix": len(re.findall(r"mma\.sync|wgmma\.mma_async|tcgen05\.mma", ptx)),
        "atomics": len(re.findall(r"\b(?:atom|red)\.", ptx)),
        "doubles": len(re.findall(r"\.f64\b", ptx)),
        "wide_loads": len(re.findall(r"ld\.global\.v4|cp\.async\.\S+ \[[^;]*, 0x10\b", ptx)),
        "wide_stores": len(re.findall(r"st\.global\.v4", ptx)),
    }


def main() -> None:
    for architecture, precision, (fields, dim, first, block, dtype) in cases():
        torch.backends.cuda.matmul.fp32_precision = precision
        options = kernels.options(kernels.VectorShape(fields, dim, int(first)), dtype)
        for kernel, types in (
            (kernels.products, [block, dtype, dtype]),
            (kernels.gradients, [block, dtype, dtype, block, dtype]),
        ):
            facts = built(kernel, architecture, options, types)
            exact = dtype == LONG and precision == "ieee"
            print(
                json.dumps(facts | {"fields": fields, "dim": dim, "first": first, "exact": exact}), flush=True
            )


if __name__ == "__main__":
    main()
