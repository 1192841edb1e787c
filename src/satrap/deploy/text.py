"""Plain data as YAML that people read."""

from __future__ import annotations

import io
from typing import Any

from ruamel.yaml import YAML


class Block(str):
    """A text of several lines, written as such."""

    __slots__ = ()


def to_yaml(value: Any) -> str:
    """Return one document; keys keep their order."""
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.width = 10**6
    yaml.representer.ignore_aliases = lambda *_: True  # nobody wants to follow them
    yaml.representer.add_representer(
        Block, lambda one, text: one.represent_scalar("tag:yaml.org,2002:str", str(text), style="|")
    )
    buffer = io.StringIO()
    yaml.dump(value, buffer)
    return buffer.getvalue()
