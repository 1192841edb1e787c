"""Plain data as readable YAML."""

from __future__ import annotations

import io
from typing import Any

from ruamel.yaml import YAML


class LiteralBlock(str):
    """A multi-line string, written as a YAML block."""

    __slots__ = ()


def to_yaml(value: Any) -> str:
    """Return one YAML document; keys keep their order."""
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.width = 10**6
    yaml.representer.ignore_aliases = lambda *_: True  # aliases are hard to read
    yaml.representer.add_representer(
        LiteralBlock, lambda yaml, text: yaml.represent_scalar("tag:yaml.org,2002:str", str(text), style="|")
    )
    buffer = io.StringIO()
    yaml.dump(value, buffer)
    return buffer.getvalue()
