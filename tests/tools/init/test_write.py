from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from satrap.tools.init.write import comment, scalar, section
from tests.support.examples import examples

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), TEXT
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


def parsed(text: str) -> Any:
    return YAML(typ="safe", pure=True).load(text)


@settings(max_examples=examples(60), deadline=None)
@given(VALUES)
def test_yaml_reads_back_what_was_written(value: Any) -> None:
    found = parsed(f"key: {scalar(value)}")["key"]
    assert found == value or (isinstance(value, float) and math.isclose(found, value))


@settings(max_examples=examples(30), deadline=None)
@given(TEXT)
def test_a_comment_is_one_line(text: str) -> None:
    assert parsed(f"key: 1  {comment(text)}\nnext: 2") == {"key": 1, "next": 2}


def test_sections_align_their_comments(tmp_path: Path) -> None:
    assert list(section("data", {"train": ("a.csv", "why"), "format": ("csv", "")})) == [
        "data:",
        "  train: a.csv  # why",
        "  format: csv",
    ]
