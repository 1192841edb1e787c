"""Compiles kernels, and caches their machine code in one folder for all kernel sources."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.extending import register_jitable

from satrap.runtime.numba_cache import cache_folder, compiled

_numba: Any = numba
F = TypeVar("F", bound=Callable[..., object])


def sources() -> list[Path]:
    """Return all kernel sources, here or in a `kernels.py`."""
    here = Path(__file__).parent
    return [*here.rglob("*.py"), *here.parents[1].glob("*/kernels.py")]


CACHE_FOLDER = cache_folder("kernels", sources())
"""The folder that caches machine code between runs; None (no caching) if no folder is writable."""

_OPTIONS = {"nogil": True, "error_model": "numpy", "boundscheck": False}


def kernel(function: F) -> F:
    """Compile a function called from Python: without the GIL, on its first call, cached on disk.

    Floating-point operations are never reordered or fused, so results are bit-identical on every CPU.
    """
    if CACHE_FOLDER is None:
        return helper(function)
    return compiled(folder=CACHE_FOLDER, **_OPTIONS)(function)


def helper(function: F) -> F:
    """Compile a function that only kernels call; it is inlined into their machine code."""
    made: F = _numba.njit(**_OPTIONS)(function)
    return made


def shared(function: F) -> F:
    """Let kernels also call a Python function, which stays callable from Python."""
    made: F = register_jitable(**_OPTIONS)(function)
    return made


WIDTHS = (16, 32, 64, 128)
"""Row widths, in weights, for which loops over a row are compiled separately."""


def by_width(make: Callable[[int], F]) -> Callable[[int], F]:
    """Return a function that returns the kernel for rows of a given number of weights.

    `make` returns the kernel for rows of exactly that many weights, or of any number for 0. With a known
    number, loops are unrolled and steps take a third less time.
    """
    kernels = {width: make(width) for width in (0, *WIDTHS)}
    return lambda dim: kernels.get(dim, kernels[0])
