"""The user's own classes and functions, named in a recipe: `my_model.py:MyNet` or `package.module:MyNet`.

A file may import modules that lie beside it, as a program may that Python runs. They are found while the file
is imported, and belong to it alone: two files may each have a `layers.py` of their own.
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
_places: set[str] = set()  # files and folders of own code, to tell whose an error is


_originals: dict[str, str] = {}  # copy -> the file that it was made of

_ELSEWHERE = {*sys.stdlib_module_names, "numpy", "satrap", "torch"}
"""Modules that are never looked for beside a file: another copy of them would break this process."""


def parts(reference: str) -> tuple[str, str]:
    """Return (file or module, name in it).

    Raises:
        ConfigError: the reference is not of the form `my_model.py:MyNet` or `package.module:MyNet`.
    """
    module, colon, name = reference.rpartition(":")
    if not colon or not name.isidentifier() or not module:
        raise ConfigError(
            f"cannot read {reference!r} as the place of your own code",
            fix="write my_model.py:Name for a file, or package.module:Name for an installed module",
        )
    return module, name


def is_file(module: str) -> bool:
    """Return whether the first of `parts` is a file."""
    return module.endswith(".py")


def files(file: Path) -> list[Path]:
    """Return a file and the modules beside it that it imports, directly or not.

    Raises:
        ConfigError: a file is missing or is no Python.
    """
    found, waiting = dict.fromkeys([file]), [file]
    while waiting:
        for one in _beside(waiting.pop()):
            if one not in found:
                found[one] = None
                waiting.append(one)
    return list(found)


def _beside(file: Path) -> Iterator[Path]:
    for top in set(_imports(file)) - _ELSEWHERE:
        module, package = file.parent / f"{top}.py", file.parent / top
        if module.is_file():
            yield module
        elif (package / "__init__.py").is_file():
            yield from sorted(package.rglob("*.py"))


def _tops(members: list[Path]) -> set[str]:
    """Return the first part of the names of the modules beside a file, of `files`."""
    return {Path(member.relative_to(members[0].parent).parts[0]).stem for member in members[1:]}


def _imports(file: Path) -> Iterator[str]:
    """Yield the first part of the name of each module that a file imports."""
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
    """Let errors in a file name another one instead, of which it is a copy."""
    _originals[str(file)] = str(original)


def digest(file: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def find(reference: str) -> Any:
    """Import a file or module, and return the class or function that a reference names.

    Raises:
        ConfigError: there is no such file, module or name, or importing it failed.
    """
    place, name = parts(reference)
    if is_file(place):
        file = Path(place).absolute()
        module, short = _import_file(file), f"{file.parent.name}/{file.name}:{name}"
    else:
        module, short = _import_module(place), reference
    found = vars(module).get(name)
    if found is None:
        names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise ConfigError(f"{place} has no {name!r}", where=place, fix=nearest(name, names))
    if callable(found):
        _references[found] = short
    return found


def nearest(word: str, allowed: list[str]) -> str:
    """Return "did you mean ...? allowed: ...", the end of an error about a name."""
    return f"{did_you_mean(word, allowed, cutoff=0.5)}allowed: {', '.join(allowed) or 'nothing'}"


def reference_of(found: object) -> str | None:
    """Return the reference of what `find` returned, with the folder of a file shortened to its own name."""
    return _references.get(found) if callable(found) else None


def references_of(found: Iterable[object]) -> list[str] | None:
    """Return the references of those that `find` returned; None if there are none."""
    return [reference for one in found if (reference := reference_of(one))] or None


def place_of(function: Any) -> str:
    """Return the file and line where a function of Python begins; empty for others."""
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
            f"there is no module {name!r}",
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
    """Let imports find modules in a folder, even if others of the same names are loaded."""
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
    """Take these modules and all inside them out of `sys.modules`."""
    names = [name for name in sys.modules if name.partition(".")[0] in tops]
    return {name: sys.modules.pop(name) for name in names}


def check_arguments(call: Any, name: str, given: Mapping[str, Any], *, first: int = 0) -> None:
    """Raise `ConfigError` if a class or function does not take some named arguments, or needs others.

    Args:
        call: what will be called.
        name: how errors call it.
        given: the arguments by name.
        first: how many arguments come before them.
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
    """Return whether an error was raised in a line of the user's own code, or below one."""
    return bool(_own_frames(error))


def _own_frames(error: BaseException) -> list[traceback.FrameSummary]:
    return [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in _places]


@contextmanager
def blaming(what: str, kind: type[SatrapError] = OwnCodeError, place: str = "") -> Iterator[None]:
    """Turn an error of the user's own code into one that says where in that code it was raised.

    Args:
        what: what happened, said before the error.
        kind: the error to raise.
        place: where, if no line of own code was reached; without it, such errors pass as they are.

    A `SatrapError` that says no place gets that line, too.

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
