"""Edits values in the text of a recipe and keeps its comments."""

import io
from collections.abc import Iterable, Mapping, MutableMapping
from copy import deepcopy
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq

from satrap.config.recipe import Recipe
from satrap.config.source import DATA_FILES, OWN_CODE, KeyPath


def edited(text: str, values: Mapping[str, Any]) -> str:
    """Return the text of a recipe with new values; comments and the order of keys stay.

    Args:
        text: YAML that `satrap.config.load` has read.
        values: all values of the new text, as plain data; missing keys are removed.

    A value under a YAML alias changes everywhere it is used, so the caller must load the result and compare
    it.
    """
    # Like "safe", "rt" builds plain data only; it also keeps comments.
    editor = YAML(typ="rt", pure=True)
    editor.preserve_quotes = True
    editor.width = 10**6
    editor.indent(mapping=2, sequence=4, offset=2)
    tree = editor.load(text)
    _merge(tree, values)
    buffer = io.StringIO()
    editor.dump(tree, buffer)
    return buffer.getvalue()


def _merge(tree: MutableMapping[str, Any], values: Mapping[str, Any]) -> None:
    for key in [key for key in tree if key not in values]:
        del tree[key]
    for key, value in values.items():
        if key in tree and isinstance(tree[key], MutableMapping) and isinstance(value, Mapping):
            _merge(tree[key], value)
        elif key not in tree or tree[key] != value:
            tree[key] = _on_one_line(value)


def _on_one_line(value: Any) -> Any:
    if not isinstance(value, Mapping | list):
        return value
    styled: Any = CommentedSeq(value) if isinstance(value, list) else CommentedMap(value)
    styled.fa.set_flow_style()  # also applies to nested values
    return styled


def written(recipe: Recipe, wanted: Recipe, changes: Iterable[KeyPath] = ()) -> dict[str, Any]:
    """Return the values written in a recipe and in overrides, as plain data with absolute file paths.

    The values at the paths in `changes` come from `wanted`.
    """
    values, complete = deepcopy(recipe.source.values), wanted.resolved()
    files: list[KeyPath] = [tuple(key.split(".")) for key in DATA_FILES]
    files += [*OWN_CODE, ("about", "md5"), *(("tables", name, "rows") for name in recipe.sections.tables)]
    for path in [*(p for p in files if _has(values, p) and _has(complete, p)), *changes]:
        _copy(complete, values, path)
    for written, join in zip(values["data"].get("join", ()), complete["data"].get("join", ()), strict=True):
        written["source"] = join["source"]
    return values


def _has(values: Any, path: KeyPath) -> bool:
    return not path or (isinstance(values, Mapping) and path[0] in values and _has(values[path[0]], path[1:]))


def _copy(complete: Any, values: Any, path: KeyPath) -> None:
    """Copy the value at a path. Inside a section, a mapping that is not written yet is copied whole."""
    for depth, part in enumerate(path[:-1]):
        complete = complete[part]
        if values.get(part) is None:
            values[part] = complete if depth else {}
        values = values[part]
    last = path[-1]
    single = isinstance(values.get(last), str) and isinstance(complete[last], list)
    values[last] = complete[last][0] if single else complete[last]
