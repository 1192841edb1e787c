"""Explains errors in recipe keys: the place, the probable intention and the allowed keys or values."""

import difflib
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from satrap.config.keys.derive import Choice, Keys, RefusedError
from satrap.config.keys.sections import CategoricalKeys, NumericKeys, Sections
from satrap.config.source import KeyPath, RecipeSource, dotted
from satrap.errors import ConfigError, did_you_mean

Pattern = tuple[str, ...]


def explain(error: ValidationError, source: RecipeSource) -> ConfigError:
    """Return one `ConfigError` for a recipe: the first unknown key, else the first other problem.

    A misspelt key often leaves a required one missing, so the unknown key explains both.
    """
    details = error.errors(include_url=False)
    order = {"extra_forbidden": 0, "choice": 1, "missing": 3}
    first = min(details, key=lambda detail: order.get(detail["type"], 2))
    return _explain(first, source)


def _explain(detail: ErrorDetails, source: RecipeSource) -> ConfigError:
    path = tuple(part for part in detail["loc"] if not str(part).startswith("<"))
    where = source.where(path)
    if detail["type"] == "extra_forbidden":
        return _unknown_key(path, list(_fields_at(detail["loc"][:-1])), source)
    if detail["type"] == "missing":
        outer = dotted(path[:-1]) or "the recipe"
        description = _fields_at(detail["loc"][:-1])[str(path[-1])].description
        return ConfigError(
            f"key {path[-1]!r} is missing in {outer}",
            where=source.where(path[:-1] or path),
            fix=f"add {path[-1]}: {str(description)[:1].upper()}{str(description)[1:]}",
        )
    if detail["type"] == "choice":
        return _unknown_kind(path, detail, source)
    refused = detail.get("ctx", {}).get("error")
    if isinstance(refused, RefusedError):
        error = refused.error
        what = re.sub(rf"^{path[-1]}: ", f"{dotted(path)}: ", error.what)
        return placed(ConfigError(what, why=error.why, fix=error.fix), path, source)
    message = str(detail["msg"]).removeprefix("Value error, ").removeprefix("Input should ")
    message = message[0].lower() + message[1:] if message.startswith(("List", "Dict")) else message
    return ConfigError(f"{dotted(path)} must {_short(message)}, got {shown(detail['input'])}", where=where)


def placed(error: ConfigError, path: KeyPath, source: RecipeSource) -> ConfigError:
    """Return an error with the place of a key: `path`, or the first key below `path` that it names."""
    inner = [(*path, word) for word in re.findall(r"\w+", error.what)]
    where = source.where(next((key for key in inner if key in source.places), path))
    return ConfigError(error.what, where=where, why=error.why, fix=error.fix)


def _short(message: str) -> str:
    plain = {
        "be a valid integer": "be a whole number",
        "be a valid number": "be a number",
        "be a valid string": "be a string",
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
    """Return a value as shown in errors: short and in YAML notation."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _unknown_key(path: KeyPath, allowed: Sequence[str], source: RecipeSource) -> ConfigError:
    key, section = str(path[-1]), dotted(path[:-1]) or "the recipe"
    homes = [dotted(pattern) or "the top level" for pattern, m in walk() if key in m.model_fields]
    near = did_you_mean(key, allowed)
    if len(path) == 3 and path[0] == "features" and (hint := _kind_of_feature(key, near)):
        pass
    elif near:
        hint = near
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


KINDS_OF_FEATURES = "dim: 16 for ids, numeric: true for a number"


def _kind_of_feature(key: str, near: str) -> str:
    """Return a hint for a key of another kind of feature, or for a key that was meant to give the kind."""
    if key in NumericKeys.model_fields:
        return f"{key!r} is for numeric features: add numeric: true; "
    if key in CategoricalKeys.model_fields:
        return f"{key!r} is for categorical features: remove it, or remove numeric: true; "
    return f"give the kind with {KINDS_OF_FEATURES}; " if key in ("type", "kind") and not near else ""


def _hint_elsewhere(key: str) -> str:
    paths = {name: dotted((*pattern, name)) for pattern, model in walk() for name in model.model_fields}
    near = difflib.get_close_matches(key, paths, n=1, cutoff=0.75)
    return f"did you mean {paths[near[0]]}? " if near else ""


def _unknown_kind(path: KeyPath, detail: ErrorDetails, source: RecipeSource) -> ConfigError:
    value, choice = detail["input"], _node_at(detail["loc"])
    if not isinstance(value, dict) or not isinstance(choice, Choice):
        fix = f"write {path[-1]}: {{...}} with {KINDS_OF_FEATURES}" if path[0] == "features" else ""
        what = f"{dotted(path)} must be a mapping, got {shown(value)}"
        return ConfigError(what, where=source.where(path), fix=fix)
    inner = (*path, choice.key)
    if choice.key not in value:
        return ConfigError(f"key {choice.key!r} is missing in {dotted(path)}", where=source.where(path))
    return unknown_value(inner, value[choice.key], list(choice.models), source)


def unknown_value(path: KeyPath, value: object, allowed: Sequence[str], source: RecipeSource) -> ConfigError:
    """Return the error for a value that is not allowed."""
    return ConfigError(
        f"{dotted(path)} cannot be {shown(value)}",
        where=source.where(path),
        fix=f"{did_you_mean(value, allowed)}allowed: {', '.join(allowed)}",
    )


def _nodes(
    annotation: Any, metadata: Sequence[Any], pattern: Pattern
) -> Iterator[tuple[Pattern, type[Keys] | Choice]]:
    """Yield (path pattern, model or choice) for all models and choices in a type, outer before inner."""
    if get_origin(annotation) is Annotated:
        annotation, metadata = get_args(annotation)[0], annotation.__metadata__
    choice = next((m for m in metadata if isinstance(m, Choice)), None)
    if choice is not None:
        yield pattern, choice
        for tag, model in choice.models.items():
            yield from _nodes(model, (), (*pattern, f"<{tag}>"))
    elif get_origin(annotation) in (Union, types.UnionType):
        for inner in get_args(annotation):
            yield from _nodes(inner, (), pattern)
    elif get_origin(annotation) in (list, dict):
        step = "[]" if get_origin(annotation) is list else "<name>"
        yield from _nodes(get_args(annotation)[-1], (), (*pattern, step))
    elif isinstance(annotation, type) and issubclass(annotation, Keys):
        yield pattern, annotation
        for key, info in annotation.model_fields.items():
            yield from _nodes(info.annotation, info.metadata, (*pattern, key))


NODES = dict(_nodes(Sections, (), ()))
"""Path pattern -> model or choice of a recipe. A pattern has `<name>` for a name the user chooses, `[]` for
items of a list, and `<tag>` for the model that a choice selected."""
PREFIXES = {pattern[:end] for pattern in NODES for end in range(len(pattern) + 1)}


def walk() -> Iterator[tuple[Pattern, type[Keys]]]:
    """Yield every mapping of a recipe as (path pattern without tags, model), outer before inner."""
    for pattern, node in NODES.items():
        if not isinstance(node, Choice):
            yield tuple(step for step in pattern if step == "<name>" or not step.startswith("<")), node


def _node_at(location: Sequence[str | int]) -> type[Keys] | Choice | None:
    """Return the model or choice at an error location."""
    pattern: Pattern = ()
    for part in location:
        exact = (*pattern, str(part))
        pattern = exact if exact in PREFIXES else (*pattern, "[]" if isinstance(part, int) else "<name>")
    return NODES.get(pattern)


def _fields_at(location: Sequence[str | int]) -> Mapping[str, FieldInfo]:
    """Return the keys of the mapping at an error location."""
    model = _node_at(location)
    assert model is not None
    assert not isinstance(model, Choice)
    return model.model_fields


def type_name(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    """Return a field's type as recipe authors know it."""
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
        str: "string",
        bool: "true | false",
        Any: "any",
    }
    return names.get(annotation, "mapping")
