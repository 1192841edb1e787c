"""A small recipe that tests change."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from satrap.config import Recipe, load
from satrap.errors import ConfigError

TEXT = """\
data:
  train: rows.csv
  split: {modulo: 10, validation: [8], test: [9]}
labels: [clicked]
features:
  user:   {dim: 16}
  genres: {dim: 16, multi: true, separator: "|", pooling: mean}
  price:  {numeric: true, transform: log1p}
model: {name: dcnv2, hidden: [256, 128]}
training:
  mode: hybrid
  staleness: 4
"""


def write(folder: Path, text: str = TEXT) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def loaded(folder: Path, *overrides: str, text: str = TEXT) -> Recipe:
    return load(write(folder, text), overrides)


def refused(folder: Path, *overrides: str, text: str = TEXT) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        loaded(folder, *overrides, text=text)
    assert str(caught.value).count("\n") <= 3
    return caught.value


def edited(old: str, new: str) -> str:
    assert TEXT.count(old) == 1
    return TEXT.replace(old, new)


def line_of(text: str, part: str) -> int:
    lines: Sequence[str] = text.splitlines()
    return next(number for number, line in enumerate(lines, 1) if part in line)
