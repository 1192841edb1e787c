"""Changes values in the text of a recipe and keeps its comments."""

import io
from collections.abc import Iterable, Mapping, MutableMapping
from copy import deepcopy
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq

from satrap.config.recipe import Recipe
from satrap.config.source import DATA_FILES, OWN_CODE, KeyPath


def edited(text: str, values: Mapping[str, Any]) -> str:
    """Return the text of a recipe with other values; comments and the order of keys stay.

    Args:
        text: YAML that `satrap.config.load` has read.
        values: all values that the new text is to have, as plain data; keys that are not there are removed.

    A value under an alias changes at all its places, so the result must be read again and compared.
    """
    # "rt" builds plain data only, as "safe" does, and keeps comments.
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
    styled.fa.set_flow_style()  # what is inside follows
    return styled


def written(recipe: Recipe, wanted: Recipe, changes: Iterable[KeyPath] = ()) -> dict[str, Any]:
    """Return what is written in a recipe and in overrides, as plain data; files as absolute paths.

    At the paths in `changes` it has the values of `wanted`.
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
    """Copy the value at a path; inside a section, with all of a mapping that is not written yet."""
    for depth, part in enumerate(path[:-1]):
        complete = complete[part]
        if values.get(part) is None:
            values[part] = complete if depth else {}
        values = values[part]
    last = path[-1]
    single = isinstance(values.get(last), str) and isinstance(complete[last], list)
    values[last] = complete[last][0] if single else complete[last]
