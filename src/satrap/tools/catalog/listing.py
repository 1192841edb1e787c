"""Models as text for a terminal."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from satrap.models.layers.common import NEEDS
from satrap.tools.catalog.model_info import ModelInfo

WIDTH = 100
"""Columns of a line of `shown`."""


def listed(infos: Sequence[ModelInfo]) -> str:
    """Return a table of models: one line each."""
    rows = [("model", "needs", "presets", "")]
    for info in infos:
        rows.append((info.name, "; ".join(info.needs) or "-", ", ".join(info.presets) or "-", info.summary))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:3]
    lines = ["  ".join([*map(str.ljust, row, widths), row[3]]).rstrip() for row in rows]
    needs = dict.fromkeys(need for info in infos for need in info.needs)
    return "\n".join([*lines, *[""][: len(needs)], *(f"{need}: {NEEDS[need]}" for need in needs)])


def shown(info: ModelInfo) -> str:
    """Return the facts about one model."""
    return "\n".join(_shown(info))


def _shown(info: ModelInfo) -> Iterator[str]:
    yield from textwrap.wrap(f"{info.name}: {info.summary}", WIDTH)
    yield from textwrap.wrap(f"source: {info.source}", WIDTH, subsequent_indent="  ")
    needs = "; ".join(NEEDS[need] for need in info.needs) or "numbers or ids"
    yield from textwrap.wrap(f"needs: {needs}", WIDTH, subsequent_indent="  ")
    yield "dims: " + ("brought to one width" if info.one_width else "used as they are")
    yield (
        f"\narguments, in a recipe `model: {{name: {info.name}, ...}}`:"
        if info.arguments
        else "\nno arguments"
    )
    for argument in info.arguments:
        head = f"  {argument.name}: {_value(argument.default)}"
        yield from textwrap.wrap(f"{head:<28} {argument.meaning}", WIDTH, subsequent_indent=" " * 29)
    if info.presets:
        yield "\npresets, `preset: NAME` in `model`:"
    for name, arguments in info.presets.items():
        values = ", ".join(f"{key}: {_value(value)}" for key, value in arguments.items())
        yield from textwrap.wrap(f"  {name}: {values or 'the defaults'}", WIDTH, subsequent_indent="    ")


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
