"""Compiles kernels with Numba and caches the machine code between runs if possible.

Numba's cache checks only the time and size of the called function's file. After an edit of a helper in
another file, or an upgrade of a package whose files have constant times, it could run stale machine code.
Here the name of the cache folder contains a digest of the sources, so changed sources use a new folder.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import llvmlite.binding as llvm
import numba
from numba.core import caching, event

from satrap.runtime.environment import variables

_numba: Any = numba
_FunctionCache: Any = caching.FunctionCache
_event: Any = event
F = TypeVar("F", bound=Callable[..., object])
SHIPPED = "SATRAP_MACHINE_CODE"
"""Variable that names a folder, possibly read-only, with the machine code that `satrap compile` wrote."""
COMPILING = "note: compiling for this machine, up to a minute; later runs reuse the machine code"
_told = False


class _Cache(_FunctionCache):  # type: ignore[misc]
    """Numba's cache, except that an unusable file costs a compilation, not the run."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        code = self._load(sig, target_context)
        if code is None:
            _announced()
        return code

    def _load(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception as error:  # noqa: BLE001 - unpickling a damaged file may raise anything
            tell(error)
            try:
                self.flush()  # so that the next process finds no damaged file
            except OSError:
                self.disable()  # saving would read it again
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except OSError as error:
            tell(error)


def digest_of(sources: Iterable[Path]) -> str:
    """Return 16 hex digits that change with any byte of any of these files."""
    digest = hashlib.sha256()
    for path in sorted(sources):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def cache_folder(name: str, sources: Iterable[Path]) -> str | None:
    """Return a folder for machine code of exactly these sources; None, with a warning, if none is writable.

    It is below `NUMBA_CACHE_DIR`, or else the user's `~/.cache`. Files for the same sources are first copied
    from the folder that `SATRAP_MACHINE_CODE` names, as in container images.
    """
    base = _numba.config.CACHE_DIR or os.path.expanduser("~/.cache")
    try:
        if base.startswith("~"):
            raise OSError("this user has no home folder")
        folder = Path(base) / "satrap" / f"{name}-{digest_of(sources)}"
        folder.mkdir(parents=True, exist_ok=True)
        if shipped := variables().get(SHIPPED):
            _take_over(Path(shipped) / "satrap" / folder.name, folder)
        with tempfile.TemporaryFile(dir=folder):
            return str(folder)
    except OSError as error:
        tell(error)
        return None


def _take_over(shipped: Path, folder: Path) -> None:
    """Copy the files that a folder lacks; safe while other processes do the same or read the folder."""
    for file in shipped.rglob("*.nb?"):
        here = folder / file.relative_to(shipped)
        if not here.exists():
            here.parent.mkdir(exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=here.parent, delete=False) as copy:
                copy.write(file.read_bytes())
            os.replace(copy.name, here)


@cache
def _folder_beside(sources: Path) -> str | None:
    """Return the cache folder shared by all compiling modules of one folder, which may call each other."""
    compiling = [path for path in sources.glob("*.py") if b"numba_cache" in path.read_bytes()]
    return cache_folder(sources.name, compiling)


def compiled(*, folder: str | None = None, **options: Any) -> Callable[[F], F]:
    """Return a decorator that compiles a function on its first call and caches the machine code on disk.

    By default, all compiling modules in the function's source folder share one cache folder. If no folder is
    writable, or the disk is full, it warns once and compiles in each process. `options` go to `numba.njit`.
    """

    def decorate(function: F) -> F:
        dispatcher: Any = _numba.njit(**options)(function)
        if (place := folder or _folder_beside(Path(function.__code__.co_filename).parent)) is None:
            return cast(F, dispatcher)
        before = _numba.config.CACHE_DIR
        try:
            _numba.config.CACHE_DIR = place
            dispatcher._cache = _Cache(function)
        except (RuntimeError, OSError) as error:
            tell(error)
        finally:
            _numba.config.CACHE_DIR = before
        return cast(F, dispatcher)

    return decorate


def folder_of(function: Callable[..., object]) -> Path | None:
    """Return the folder that caches the machine code of a `compiled` function; None if it is not cached."""
    path = getattr(getattr(function, "stats", None), "cache_path", None)
    return Path(path) if path else None


def announce(compiling: Callable[[], object]) -> None:
    """Call `compiling` once, when the next function is compiled because its machine code is not on disk.

    Replaces the default, which logs `COMPILING` once to the logger "satrap"; Python prints it on standard
    error unless logging is configured otherwise.
    """
    global _announce
    _announce = compiling


def _log() -> None:
    logging.getLogger("satrap").warning(COMPILING)


_announce: Callable[[], object] | None = _log


def _announced() -> None:
    global _announce
    tell_it, _announce = _announce, None
    if tell_it is not None:
        tell_it()


class _Compiling(_event.Listener):  # type: ignore[misc]
    """Records since when functions are being compiled; compilations may be nested."""

    def __init__(self) -> None:
        self.depth, self.since, self._lock = 0, 0.0, threading.Lock()

    def on_start(self, _: object = None) -> None:
        with self._lock:
            self.since = self.since if self.depth else time.monotonic()
            self.depth += 1

    def on_end(self, _: object = None) -> None:
        with self._lock:
            self.depth -= 1


_compiling = _Compiling()
_event.register("numba:compile", _compiling)


@contextmanager
def preparing() -> Iterator[None]:
    """Count a block as compiling, since it may load much machine code, which can take seconds."""
    _compiling.on_start()
    try:
        yield
    finally:
        _compiling.on_end()


def processor() -> str:
    """Return the name of the processor that functions are compiled for; `NUMBA_CPU_NAME` overrides it."""
    name: str = _numba.config.CPU_NAME or llvm.get_host_cpu_name()
    return name


def compiling() -> int | None:
    """Return a number that grows while this process compiles a function, else None; thread-safe."""
    return int(100 * (time.monotonic() - _compiling.since)) if _compiling.depth else None


def tell(error: object) -> None:
    """Warn, once per process, that machine code cannot be cached."""
    global _told
    if not _told:
        _told = True
        warnings.warn(
            f"compiled code cannot be cached, so every process compiles it again, which takes up to a minute "
            f"({error}); set NUMBA_CACHE_DIR to a writable folder",
            RuntimeWarning,
            stacklevel=2,
        )
