"""Changes values in the text of a recipe and keeps its comments."""

import io
from collections.abc import Mapping, MutableMapping
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq


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
