"""The user's own classes and functions, named in a recipe: `my_model.py:MyNet` or `package.module:MyNet`.

A file may import modules from its own folder, as a script can. These modules are visible only while the file
is imported and only to it, so two files may each have their own `layers.py`.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import inspect
import sys
import traceback
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from satrap.errors import ConfigError, OwnCodeError, SatrapError, did_you_mean

_modules: dict[tuple[str, str], ModuleType] = {}  # by path and digest of the file
_references: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_places: set[str] = set()  # files of user code, to recognise errors raised there


_originals: dict[str, str] = {}  # copy -> its original file

_ELSEWHERE = {*sys.stdlib_module_names, "numpy", "satrap", "torch"}
"""Modules that are never imported from a file's folder: a second copy of them would break this process."""


def parts(reference: str) -> tuple[str, str]:
    """Return (file or module, name in it).

    Raises:
        ConfigError: the reference is not of the form `my_model.py:MyNet` or `package.module:MyNet`.
    """
    module, colon, name = reference.rpartition(":")
    if not colon or not name.isidentifier() or not module:
        raise ConfigError(
            f"{reference!r} is not a reference to your own code",
            fix="write my_model.py:Name for a file, or package.module:Name for an installed module",
        )
    return module, name


def is_file(module: str) -> bool:
    """Return whether the first of `parts` is a file."""
    return module.endswith(".py")


def files(file: Path) -> list[Path]:
    """Return a file and the modules in its folder that it imports, directly or indirectly.

    Raises:
        ConfigError: a file is missing or is not Python.
    """
    members, waiting = dict.fromkeys([file]), [file]
    while waiting:
        for module in _beside(waiting.pop()):
            if module not in members:
                members[module] = None
                waiting.append(module)
    return list(members)


def _beside(file: Path) -> Iterator[Path]:
    for top in set(_imports(file)) - _ELSEWHERE:
        module, package = file.parent / f"{top}.py", file.parent / top
        if module.is_file():
            yield module
        elif (package / "__init__.py").is_file():
            yield from sorted(package.rglob("*.py"))


def _tops(members: list[Path]) -> set[str]:
    """Return the top-level names of the modules that `files` lists after the file itself."""
    return {Path(member.relative_to(members[0].parent).parts[0]).stem for member in members[1:]}


def _imports(file: Path) -> Iterator[str]:
    """Yield the top-level name of each module that a file imports."""
    try:
        tree = ast.parse(file.read_bytes(), filename=str(file))
    except OSError as error:
        raise ConfigError(
            f"cannot read your own code: {error.strerror}",
            where=str(file),
            fix="paths in a recipe are relative to its folder",
        ) from error
    except (SyntaxError, ValueError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) else ""
        raise ConfigError(f"your own code is not Python: {error}", where=f"{file}{line}") from error
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def is_copy(file: Path, original: Path) -> None:
    """Register a file as a copy, so that errors in it name its original."""
    _originals[str(file)] = str(original)


def digest(file: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def find(reference: str) -> Any:
    """Import a file or module, and return the class or function that a reference names.

    Raises:
        ConfigError: the file, module or name does not exist, or its import failed.
    """
    place, name = parts(reference)
    if is_file(place):
        file = Path(place).absolute()
        module, short = _import_file(file), f"{file.parent.name}/{file.name}:{name}"
    else:
        module, short = _import_module(place), reference
    target = vars(module).get(name)
    if target is None:
        names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise ConfigError(f"{place} has no {name!r}", where=place, fix=nearest(name, names))
    if callable(target):
        _references[target] = short
    return target


def nearest(word: str, allowed: list[str]) -> str:
    """Return "did you mean ...? allowed: ...", the end of an error about a name."""
    return f"{did_you_mean(word, allowed, cutoff=0.5)}allowed: {', '.join(allowed) or 'nothing'}"


def reference_of(found: object) -> str | None:
    """Return the reference of an object that `find` returned; of a file's path, only its folder is kept."""
    return _references.get(found) if callable(found) else None


def references_of(found: Iterable[object]) -> list[str] | None:
    """Return the references of all objects that `find` returned; None if it returned none of them."""
    return [reference for item in found if (reference := reference_of(item))] or None


def place_of(function: Any) -> str:
    """Return the file and line where a Python function begins; empty for other callables."""
    code = getattr(function, "__code__", None)
    if code is None:
        return ""
    return f"{_originals.get(code.co_filename, code.co_filename)}:{code.co_firstlineno}"


def _import_module(name: str) -> ModuleType:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        raise ConfigError(
            f"module {name!r} does not exist",
            fix="install it, add its folder to PYTHONPATH, or name a file: my_model.py:Name",
        )
    if spec.origin is not None:
        _places.add(spec.origin)
    with blaming(f"{name} cannot be imported", ConfigError, spec.origin or name):
        return importlib.import_module(name)


def _import_file(file: Path) -> ModuleType:
    members = files(file)
    digests = "".join(map(digest, members))
    key = str(file), hashlib.sha256(digests.encode()).hexdigest()
    if key not in _modules:
        _places.update(map(str, members))
        with _found_beside(file.parent, _tops(members)):
            _modules[key] = _load(file, f"satrap_own_{key[1][:16]}_{file.stem}")
    return _modules[key]


def _load(file: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # classes look up their module there
    try:
        with blaming(f"{file.name} cannot be imported", ConfigError, str(file)):
            spec.loader.exec_module(module)
    except ConfigError:
        del sys.modules[name]
        raise
    return module


@contextmanager
def _found_beside(folder: Path, tops: set[str]) -> Iterator[None]:
    """Let imports find modules in a folder, even if other modules of the same names are loaded."""
    others = _taken(tops)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        _taken(tops)
        sys.modules.update(others)


def _taken(tops: set[str]) -> dict[str, ModuleType]:
    """Remove these modules and their submodules from `sys.modules`; return them."""
    names = [name for name in sys.modules if name.partition(".")[0] in tops]
    return {name: sys.modules.pop(name) for name in names}


def check_arguments(call: Any, name: str, given: Mapping[str, Any], *, first: int = 0) -> None:
    """Raise `ConfigError` if named arguments of a class or function are unknown or missing.

    Args:
        call: the class or function.
        name: its name in errors.
        given: the arguments by name.
        first: number of positional arguments before them.
    """
    parameters = list(inspect.signature(call).parameters.values())
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)][first:]
    allowed = [parameter.name for parameter in named]
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        for key in given:
            if key not in allowed:
                raise ConfigError(f"{name} has no argument {key!r}", fix=nearest(key, allowed))
    for parameter in named:
        if parameter.default is parameter.empty and parameter.name not in given:
            raise ConfigError(f"{name} needs the argument {parameter.name!r}", fix=f"add {parameter.name}")


def is_blamed(error: BaseException) -> bool:
    """Return whether an error was raised in user code, or in a function that user code called."""
    return bool(_own_frames(error))


def _own_frames(error: BaseException) -> list[traceback.FrameSummary]:
    return [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in _places]


@contextmanager
def blaming(what: str, kind: type[SatrapError] = OwnCodeError, place: str = "") -> Iterator[None]:
    """Turn an error in user code into one whose `where` is the line of that code.

    Args:
        what: what happened; precedes the error's text.
        kind: the type of the error to raise.
        place: `where` if no line of user code was reached; if empty, such errors propagate unchanged.

    A `SatrapError` without `where` also gets that line.

    Raises:
        SatrapError: of the kind.
    """
    try:
        yield
    except Exception as error:
        if frames := _own_frames(error):
            file = frames[-1].filename
            place = f"{_originals.get(file, file)}:{frames[-1].lineno}, in {frames[-1].name}"
        if isinstance(error, SatrapError) and frames and not error.where:
            raise type(error)(error.what, where=place, why=error.why, fix=error.fix) from error
        if not place or isinstance(error, SatrapError):
            raise
        text = " ".join(str(error).split())
        raise kind(f"{what}: {type(error).__name__}: {text[:300]}", where=place) from error
