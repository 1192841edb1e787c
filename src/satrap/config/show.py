"""Recipes and their keys as text, for `satrap config` and run folders."""

import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any

from pydantic.fields import FieldInfo
from ruamel.yaml import YAML

from satrap.config.explain import Pattern, shown, type_name, walk
from satrap.config.keys.derive import Keys
from satrap.config.recipe import Recipe
from satrap.config.source import KeyPath, dotted
from satrap.errors import ConfigError


def to_yaml(value: Any, *, flow: bool | None = False) -> str:
    """Return plain data as YAML text, on one line with `flow=True`."""
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = flow
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.width = 10**6
    buffer = io.StringIO()
    yaml.dump(value, buffer)
    return re.sub(r"^\.\.\.\n\Z", "", buffer.getvalue(), flags=re.MULTILINE)


def leaves(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Yield (path, value) for every value in a recipe; a feature or a list counts as one value."""
    if isinstance(value, Mapping) and path[:-1] not in (("features",), ("about",)):
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    else:
        yield path, value


def origins(recipe: Recipe) -> dict[str, str]:
    """Return dotted key -> "recipe.yaml:12", "--set" or "default", for every value."""
    return {dotted(path): _origin(recipe, path) for path, _ in leaves(recipe.resolved())}


def _origin(recipe: Recipe, path: KeyPath) -> str:
    within = {recipe.origin(p) for p in recipe.source.places if p[: len(path)] == path}
    if "--set" in within:
        return "--set"
    return recipe.origin(path)


def annotated(recipe: Recipe) -> str:
    """Return the resolved recipe as YAML, with the origin of each value at the end of its line."""
    rows: list[tuple[str, str]] = []
    open_sections: KeyPath = ()
    for path, value in leaves(recipe.resolved()):
        for depth in range(len(path) - 1):
            if open_sections[: depth + 1] != path[: depth + 1]:
                rows.append(("  " * depth + f"{path[depth]}:", ""))
        open_sections = path[:-1]
        text = to_yaml({str(path[-1]): value}, flow=True).strip()[1:-1]
        rows.append(("  " * (len(path) - 1) + text, _origin(recipe, path)))
    width = min(max(len(left) for left, _ in rows), 72)
    return "\n".join(f"{left:<{width}}  # {right}" if right else left for left, right in rows)


def reference(section: str | None = None) -> str:
    """Return all recipe keys, or the keys of a section, with type, default and meaning."""
    blocks = []
    for pattern, model in walk():
        if section is None or dotted(pattern).split(".")[0] == section:
            lines = [_heading(pattern, model.__name__)]
            lines += [_field(key, info) for key, info in model.model_fields.items()]
            blocks.append("\n".join(lines))
    if not blocks:
        sections = ", ".join(dict.fromkeys(p[0] for p, _ in walk() if p))
        raise ConfigError(f"unknown section {section!r}", fix=f"sections: {sections}")
    return "\n\n".join(blocks)


def _heading(pattern: Pattern, model: str) -> str:
    kinds = pattern and pattern[-1] in ("<name>", "[]", "optimizer")
    return (dotted(pattern) or "recipe") + (f"  ({re.sub('Keys$', '', model)})" if kinds else "")


def written_default(info: FieldInfo) -> str:
    """Return a key's default as text, "required", or "" if it is empty or a section."""
    default = info.get_default(call_default_factory=True)
    if info.is_required():
        return "required"
    if isinstance(default, Keys) or is_dataclass(default) or default in (None, "store", {}, []):
        return ""
    return shown(default).replace("'", "")


def _field(key: str, info: FieldInfo) -> str:
    default = written_default(info)
    note = default if not default or default == "required" else f"default {default}"
    kind = type_name(info.annotation, info.metadata)
    meaning = " ".join(str(info.description).split())
    return f"  {key}: {kind}{', ' + note if note else ''}\n      {meaning[:1].upper()}{meaning[1:]}"
