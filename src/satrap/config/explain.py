"""Explains errors in recipe keys: where, what was probably meant, what is allowed."""

import difflib
import types
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from satrap.config.derive import Choice, Keys
from satrap.config.keys import Sections
from satrap.config.source import KeyPath, Source, dotted
from satrap.errors import ConfigError

Pattern = tuple[str, ...]
ONE_OF = {"any": "<name>", "each": "[]"}


def explain(error: ValidationError, source: Source) -> ConfigError:
    """Return one `ConfigError` for a recipe: its first unknown key, else its first problem.

    A misspelt key often leaves a required one missing, so the unknown key explains both.
    """
    details = error.errors(include_url=False)
    order = {"extra_forbidden": 0, "choice": 1, "missing": 3}
    first = min(details, key=lambda detail: order.get(detail["type"], 2))
    return _explain(first, source)


def _explain(detail: ErrorDetails, source: Source) -> ConfigError:
    path = tuple(part for part in detail["loc"] if not str(part).startswith("<"))
    where = source.where(path)
    if detail["type"] == "extra_forbidden":
        return unknown_key(path, model_at(detail["loc"][:-1]), source)
    if detail["type"] == "missing":
        outer = dotted(path[:-1]) or "the recipe"
        description = model_at(detail["loc"][:-1]).model_fields[str(path[-1])].description
        return ConfigError(
            f"key {path[-1]!r} is missing in {outer}",
            where=source.where(path[:-1] or path),
            fix=f"add {path[-1]}: {description}",
        )
    if detail["type"] == "choice":
        return _unknown_kind(path, detail, source)
    message = str(detail["msg"]).removeprefix("Value error, ").removeprefix("Input should ")
    message = message[0].lower() + message[1:] if message.startswith(("List", "Dict")) else message
    return ConfigError(f"{dotted(path)} must {_short(message)}, got {shown(detail['input'])}", where=where)


def _short(message: str) -> str:
    plain = {
        "be a valid integer": "be a whole number",
        "be a valid number": "be a number",
        "be a valid string": "be a text",
        "be a valid boolean": "be true or false",
        "be a valid list": "be a list",
        "be a valid dictionary": "be a mapping",
        "be greater than or equal to": "be at least",
        "be greater than": "be above",
        "be less than or equal to": "be at most",
        "be less than": "be below",
        "list should have": "have",
        "dictionary should have": "have",
    }
    for long, short in plain.items():
        if message.startswith(long):
            rest = message.removeprefix(long)
            return short + ("" if rest.startswith((" or instance", ", unable")) else rest.split(" after ")[0])
    return message


def shown(value: object) -> str:
    """Return a value as errors show it: short, in YAML's words."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def unknown_key(path: KeyPath, model: type[BaseModel], source: Source) -> ConfigError:
    """Return the error for a key that its section does not have."""
    key, section = str(path[-1]), dotted(path[:-1]) or "the recipe"
    allowed = list(model.model_fields)
    homes = [dotted(pattern) or "the top level" for pattern, m in walk() if key in m.model_fields]
    near = difflib.get_close_matches(key, allowed, n=1, cutoff=0.6)
    if near:
        hint = f"did you mean {near[0]!r}? "
    elif homes:
        hint = f"{key!r} belongs to {' or '.join(dict.fromkeys(homes))}; "
    else:
        hint = _hint_elsewhere(key)
    return ConfigError(
        f"unknown key {key!r} in {section}",
        where=source.where(path),
        why="an unknown key would have no effect",
        fix=f"{hint}allowed here: {', '.join(allowed)}",
    )


def _hint_elsewhere(key: str) -> str:
    known = {name: dotted((*pattern, name)) for pattern, model in walk() for name in model.model_fields}
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.75)
    return f"did you mean {known[near[0]]}? " if near else ""


def _unknown_kind(path: KeyPath, detail: ErrorDetails, source: Source) -> ConfigError:
    value, choice = detail["input"], _choice_at(detail["loc"])
    if not isinstance(value, dict) or choice is None:
        return ConfigError(f"{dotted(path)} must be a mapping, got {shown(value)}", where=source.where(path))
    inner = (*path, choice.key)
    if choice.key not in value:
        return ConfigError(f"key {choice.key!r} is missing in {dotted(path)}", where=source.where(path))
    return unknown_value(inner, value[choice.key], list(choice.models), source)


def unknown_value(path: KeyPath, value: object, allowed: Sequence[str], source: Source) -> ConfigError:
    """Return the error for a value that is not allowed."""
    near = difflib.get_close_matches(str(value), allowed, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return ConfigError(
        f"{dotted(path)} cannot be {shown(value)}",
        where=source.where(path),
        fix=f"{hint}allowed: {', '.join(allowed)}",
    )


def _parts(annotation: Any, metadata: Sequence[Any] = ()) -> Iterator[tuple[str, Any]]:
    """Yield (step, inner) for what a field may hold: models, tagged choices, list and dict members."""
    choices = [m for m in metadata if isinstance(m, Choice)]
    if choices:
        yield from ((f"<{tag}>", model) for tag, model in choices[0].models.items())
    elif get_origin(annotation) is Annotated:
        yield from _parts(get_args(annotation)[0], annotation.__metadata__)
    elif get_origin(annotation) in (Union, types.UnionType):
        for inner in get_args(annotation):
            yield from _parts(inner)
    elif get_origin(annotation) in (list, dict):
        yield (ONE_OF["each" if get_origin(annotation) is list else "any"], get_args(annotation)[-1])
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield ("", annotation)


def walk(
    model: type[BaseModel] = Sections, pattern: Pattern = ()
) -> Iterator[tuple[Pattern, type[BaseModel]]]:
    """Yield every mapping of a recipe as (path pattern, model), outer ones first.

    A pattern has `<name>` for a name the user chooses and `[]` for a list's members.
    """
    yield pattern, model
    for key, info in model.model_fields.items():
        yield from _walk_parts(info.annotation, info.metadata, (*pattern, key))


def _walk_parts(annotation: Any, metadata: Sequence[Any], pattern: Pattern) -> Iterator[tuple[Pattern, Any]]:
    for step, inner in _parts(annotation, metadata):
        below = (*pattern, step) if step in ONE_OF.values() else pattern
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from walk(inner, below)
        else:
            yield from _walk_parts(inner, (), below)


def _follow(location: Sequence[str | int]) -> tuple[Any, Sequence[Any]]:
    """Return (annotation, metadata) of the field at an error location."""
    annotation: Any = Sections
    metadata: Sequence[Any] = ()
    for part in location:
        found = dict(_parts(annotation, metadata))
        if str(part).startswith("<") and part in found:
            annotation, metadata = found[str(part)], ()
        elif "" in found:
            info = found[""].model_fields[str(part)]
            annotation, metadata = info.annotation, info.metadata
        else:
            annotation, metadata = found[ONE_OF["each" if isinstance(part, int) else "any"]], ()
    return annotation, metadata


def model_at(location: Sequence[str | int]) -> type[Keys]:
    """Return the model that checks the mapping at an error location."""
    annotation, metadata = _follow(location)
    model: type[Keys] = dict(_parts(annotation, metadata))[""]
    return model


def _choice_at(location: Sequence[str | int]) -> Choice | None:
    annotation, metadata = _follow(location)
    if get_origin(annotation) is Annotated:
        metadata = annotation.__metadata__
    return next((m for m in metadata if isinstance(m, Choice)), None)


def type_name(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    """Return a field's type in words of a recipe's author."""
    if get_origin(annotation) is Annotated:
        return type_name(get_args(annotation)[0], annotation.__metadata__)
    if get_origin(annotation) is Literal:
        return " | ".join(shown(v).strip("'") for v in get_args(annotation))
    if get_origin(annotation) in (Union, types.UnionType):
        return " | ".join(type_name(a) for a in get_args(annotation) if a is not types.NoneType)
    if get_origin(annotation) is list:
        return f"list of {type_name(get_args(annotation)[0])}"
    if get_origin(annotation) is dict:
        return "mapping"
    names: dict[Any, str] = {
        int: "whole number",
        float: "number",
        str: "text",
        bool: "true | false",
        Any: "any",
    }
    return names.get(annotation, "mapping")
