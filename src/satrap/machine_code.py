"""Compiles kernels with Numba and keeps the machine code between runs if that is possible."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core import caching

_numba: Any = numba
_FunctionCache: Any = caching.FunctionCache
F = TypeVar("F", bound=Callable[..., object])
_told = False
_announce: Callable[[], object] | None = None


class _Cache(_FunctionCache):  # type: ignore[misc]
    """Numba's cache, except that an unusable file costs a compilation, not the run."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        found = self._load(sig, target_context)
        if found is None:
            _announced()
        return found

    def _load(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception as error:  # noqa: BLE001 - a damaged file may raise anything while it is unpickled
            tell(error)
            try:
                self.flush()  # so that the next process finds a whole one
            except OSError:
                self.disable()  # saving would read it again
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except OSError as error:
            tell(error)


def compiled(*, folder: str | None = None, **options: Any) -> Callable[[F], F]:
    """Return a decorator that compiles a function on its first call and keeps the machine code on disk.

    The folder is Numba's choice by default, beside the source or below the home folder. If no folder can be
    written, or the disk is full, it warns once and compiles in each process. `options` go to `numba.njit`.
    """

    def decorate(function: F) -> F:
        dispatcher = _numba.njit(**options)(function)
        before = _numba.config.CACHE_DIR
        try:
            _numba.config.CACHE_DIR = folder or before
            dispatcher._cache = _Cache(function)
        except (RuntimeError, OSError) as error:
            tell(error)
        finally:
            _numba.config.CACHE_DIR = before
        result: F = dispatcher
        return result

    return decorate


def folder_of(function: Callable[..., object]) -> Path | None:
    """Return the folder that keeps the machine code of a `compiled` function; None if it is not kept."""
    path = getattr(getattr(function, "stats", None), "cache_path", None)
    return Path(path) if path else None


def announce(compiling: Callable[[], object]) -> None:
    """Call `compiling` once, when the next function is compiled because its machine code is not on disk."""
    global _announce
    _announce = compiling


def _announced() -> None:
    global _announce
    tell_it, _announce = _announce, None
    if tell_it is not None:
        tell_it()


def tell(error: object) -> None:
    """Warn, once in a process, that machine code cannot be kept."""
    global _told
    if not _told:
        _told = True
        warnings.warn(
            f"compiled code cannot be kept, so every process compiles it again, which takes up to a minute "
            f"({error}); let NUMBA_CACHE_DIR name a folder that can be written",
            RuntimeWarning,
            stacklevel=2,
        )
