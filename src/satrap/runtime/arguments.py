"""Checks arguments against their annotations, so that the error names the wrong argument at the call."""

from __future__ import annotations

import functools
import inspect
import os
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from satrap.errors import ConfigError, did_you_mean

BYTES, SECONDS = "bytes", "seconds"
Bytes = Annotated[int, BYTES]
Seconds = Annotated[float, SECONDS]
"""Units of settings: recipes accept `4GiB` and `5s`."""

F = TypeVar("F", bound=Callable[..., Any])

_WORDS: dict[object, str] = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a text",
    type(None): "None",
    Callable: "a function",
    Mapping: "a dict",
    dict: "a dict",
}
_PLURALS: dict[object, str] = {int: "whole numbers", float: "numbers", str: "texts", Callable: "functions"}


class _Wrong(NamedTuple):
    """A value that does not match its annotation: its path inside the argument, and the expected type."""

    path: str
    hint: Any
    value: object


def checked(**fixes: str) -> Callable[[F], F]:
    """Return a decorator that checks the arguments of a function, or of a class's public methods.

    Lists are accepted for tuples, paths for strings, and NumPy numbers and arrays for Python's. They are
    converted to the annotated type. Arguments annotated with `Any` or a type variable are not checked.

    Args:
        fixes: argument -> the error's advice if it is wrong.

    Raises:
        ConfigError: raised by the decorated function; names the argument.
    """

    def decorate(call: F) -> F:
        if not isinstance(call, type):
            checking: F = _checking(call, call.__qualname__.removesuffix(".__init__"), fixes)
            return checking
        for key, method in list(vars(call).items()):
            function = getattr(method, "__func__", method)  # unwraps a class method
            if inspect.isfunction(function) and (key == "__init__" or not key.startswith("_")):
                owner = call.__qualname__ if key == "__init__" else f"{call.__qualname__}.{key}"
                made = _checking(function, owner, fixes)
                setattr(call, key, made if function is method else type(method)(made))
        return call

    return decorate


def _checking(call: Any, owner: str, fixes: Mapping[str, str]) -> Any:
    names = list(inspect.signature(call).parameters)

    bound = int(names[:1] in (["self"], ["cls"]))
    quick: list[tuple[list[_Quick], dict[str, _Quick]]] = []  # one entry once the hints are resolved

    @functools.cache
    def hints() -> dict[str, Any]:
        resolved = get_type_hints(call)  # on the first call, when all names in the annotations are defined
        by_name = {name: _Quick.of(resolved[name]) for name in names if name in resolved}
        quick[:] = [([by_name.get(name, _NOTHING) for name in names[bound:]], by_name)]
        return resolved

    def fits(given: tuple[Any, ...], named: Mapping[str, Any]) -> bool:
        """Return whether all arguments pass the fast check, which keeps batches and lookups fast."""
        by_place, by_name = quick[0]
        for value, check in zip(given[bound:] if bound else given, by_place, strict=False):
            if type(value) not in check.kinds and not check.holds(value):
                return False
        for name, value in named.items():
            check = by_name.get(name, _NOTHING)
            if type(value) not in check.kinds and not check.holds(value):
                return False
        return True

    @functools.wraps(call)
    def checking(*given: Any, **named: Any) -> Any:
        if quick and fits(given, named):
            return call(*given, **named)
        kinds = hints()

        def conforming(name: str, value: Any) -> Any:
            return _conforming(owner, name, value, kinds.get(name, Any), fixes)

        places = [conforming(name, value) for name, value in zip(names, given, strict=False)]
        named = {name: conforming(name, value) for name, value in named.items()}
        return call(*places, *given[len(places) :], **named)

    return checking


def _at_once(hint: Any) -> frozenset[type]:
    """Return the classes whose direct instances match an annotation whatever they contain."""
    kinds = [get_origin(part) or part for part in _parts(hint)]
    whole = [kind for kind in kinds if isinstance(kind, type) and not _holds(kind)]
    return frozenset([*whole, int] if float in whole else whole)


class _Quick(NamedTuple):
    """The fast check of an annotation: values that certainly match it."""

    kinds: frozenset[type]  # direct instances match, whatever they contain
    values: frozenset[type] | None = None  # a dict of strings -> instances of these matches
    anything: bool = False

    @classmethod
    def of(cls, hint: Any) -> _Quick:
        values = None
        for part in _parts(hint):
            origin, inside = _inside(part)
            if isinstance(origin, type) and issubclass(origin, Mapping) and inside[0] is str:
                values = _at_once(inside[1])
        return cls(_at_once(hint), values, hint is Any)

    def holds(self, value: object) -> bool:
        if self.anything:
            return True
        if self.values is None or type(value) is not dict:
            return False
        return set(map(type, value)) <= {str} and set(map(type, value.values())) <= self.values


_NOTHING = _Quick(frozenset())


def _holds(kind: type) -> bool:
    """Return whether the items of an instance must match as well."""
    return kind in (Iterable, Collection) or (issubclass(kind, Mapping | Sequence) and kind is not str)


def _conforming(owner: str, name: str, value: Any, hint: Any, fixes: Mapping[str, str]) -> Any:
    """Return a value converted to its annotated type."""
    if _wrong(value, hint, name) is None:
        return value
    plain = _plain(value)
    wrong = _wrong(plain, hint, name)
    if wrong is None:
        return plain
    if wrong.path == name:
        wrong = _Wrong(name, wrong.hint, value)
    parts = [part for part in _parts(wrong.hint) if part is not type(None)]
    if isinstance(wrong.value, str) and all(get_origin(part) is Literal for part in parts):
        choices = [choice for part in parts for choice in get_args(part)]
        raise ConfigError(
            f"{owner}: {wrong.path} {wrong.value!r} is unknown",
            fix=f"{did_you_mean(wrong.value, map(str, choices))}use one of {', '.join(map(str, choices))}",
        )
    raise ConfigError(
        f"{owner}: {wrong.path} must be {_described(wrong.hint)}, got {_shown(wrong.value)}",
        fix=fixes.get(name, ""),
    )


def _plain(value: Any) -> Any:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if not isinstance(value, type) and callable(getattr(value, "tolist", None)):
        value = value.tolist()
    return tuple(map(_plain, value)) if type(value) in (list, tuple, range) else value


@functools.cache
def _parts(hint: Any) -> tuple[Any, ...]:
    """Return the types of a union, or the type itself."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


@functools.cache
def _inside(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the class of a type with parameters, None if it has none, and the parameters."""
    return get_origin(hint), get_args(hint)


def _wrong(value: Any, hint: Any, path: str) -> _Wrong | None:
    """Return the innermost part of a value that does not match an annotation; None: all of it matches."""
    if len(parts := _parts(hint)) > 1:
        wrongs = [_wrong(value, part, path) for part in parts]
        inner = [wrong for wrong in wrongs if wrong is not None and wrong.path != path]
        return None if None in wrongs else next(iter(inner), _Wrong(path, hint, value))
    origin, inside = _inside(hint)
    if origin is Literal:
        fits = any(type(value) is type(choice) and value == choice for choice in inside)
        return None if fits else _Wrong(path, hint, value)
    if not _is(value, origin or hint):
        return _Wrong(path, hint, value)
    if origin is None or not _holds(origin) or not isinstance(value, Collection):
        return None
    if isinstance(value, Mapping) and issubclass(origin, Mapping):
        items = [*((f"{path}: the key", key, inside[0]) for key in value)]
        items += [(f"{path}[{key!r}]", item, inside[1]) for key, item in value.items()]
    else:
        if origin is tuple and inside[-1] is not ...:
            if len(value) != len(inside):
                return _Wrong(path, hint, value)
            kinds: Sequence[Any] = inside
        else:
            kinds = [inside[0]] * len(value)
        items = [(f"{path}[{i}]", *pair) for i, pair in enumerate(zip(value, kinds, strict=True))]
    checks = (_wrong(item, kind, place) for place, item, kind in items)
    return next((wrong for wrong in checks if wrong is not None), None)


def _is(value: object, kind: Any) -> bool:
    if kind is Any or not isinstance(kind, type):  # such as a type variable
        return True
    if kind in (int, float):
        return isinstance(value, int | kind) and not isinstance(value, bool)
    if isinstance(value, str) and issubclass(kind, Sequence):
        return kind is str
    return isinstance(value, kind)


def _described(hint: Any) -> str:
    parts = [_one(part) for part in _parts(hint)]
    return " or ".join([*([", ".join(parts[:-1])] if parts[1:] else []), parts[-1]])


def _one(hint: Any) -> str:
    origin, inside = get_origin(hint), get_args(hint)
    if origin is Literal:
        return " or ".join(map(repr, inside))
    kind = origin or hint
    if (inside and isinstance(kind, type) and issubclass(Sequence, kind)) or kind in (tuple, list):
        inner = [part for part in _parts(inside[0])] if inside else []
        words = [
            _PLURALS.get(get_origin(item) or item, getattr(item, "__name__", str(item))) for item in inner
        ]
        return f"a list of {' or '.join(words)}" if words else "a list"
    name = getattr(kind, "__name__", str(kind))
    return _WORDS.get(kind, f"{'an' if name[:1] in 'AEIOU' else 'a'} {name}")


def _shown(value: object) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:57]}..."
    return f"a value of type {type(value).__name__}"
