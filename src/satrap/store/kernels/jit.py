"""How kernels are compiled and where their machine code is cached.

Numba's own cache checks only the file of the called function. After an edit of a helper in another file, or
an upgrade of a package whose files have constant times, it could run old machine code. Here the name of the
cache folder contains a digest of all kernel sources: other sources use another folder.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.extending import register_jitable

from satrap.machine_code import compiled, tell

_numba: Any = numba
F = TypeVar("F", bound=Callable[..., object])


def source_digest() -> str:
    """Return 16 hex digits that change with any byte of any kernel source, here or in a `kernels.py`."""
    digest, here = hashlib.sha256(), Path(__file__).parent
    for path in sorted([*here.glob("*.py"), *here.parents[1].glob("*/kernels.py")]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _cache_folder() -> str | None:
    """Return a writable folder for machine code of exactly these sources, or None."""
    base = _numba.config.CACHE_DIR or os.path.expanduser("~/.cache")  # NUMBA_CACHE_DIR, as Numba reads it
    try:
        if base.startswith("~"):
            raise OSError("this user has no home folder")
        folder = Path(base) / "satrap" / f"kernels-{source_digest()}"
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return str(folder)
    except OSError as error:
        tell(error)
        return None


CACHE_FOLDER = _cache_folder()
"""Where machine code is kept between runs; None if no folder is writable (then none is kept)."""

_OPTIONS = {"nogil": True, "error_model": "numpy", "boundscheck": False}


def kernel(function: F) -> F:
    """Compile a function called from Python: without the GIL, on its first call, cached on disk.

    Floating-point operations are never reordered or fused, so the same bits come out of every CPU.
    """
    if CACHE_FOLDER is None:
        return helper(function)
    return compiled(folder=CACHE_FOLDER, **_OPTIONS)(function)


def helper(function: F) -> F:
    """Compile a function called from kernels only; it becomes part of their machine code."""
    made: F = _numba.njit(**_OPTIONS)(function)
    return made


def shared(function: F) -> F:
    """Let kernels call a function of Python, too, which stays as it is."""
    made: F = register_jitable(**_OPTIONS)(function)
    return made


WIDTHS = (16, 32, 64, 128)
"""Row widths, in weights, for which loops over a row are compiled separately."""


def by_width(make: Callable[[int], F]) -> Callable[[int], F]:
    """Return a function that gives the kernel for rows of a number of weights.

    `make` returns the kernel for rows of exactly that many weights, or of any number for 0. With the number
    known, loops unroll and steps take a third less time.
    """
    kernels = {width: make(width) for width in (0, *WIDTHS)}
    return lambda dim: kernels.get(dim, kernels[0])
