"""Tutorials and how-to pages do what they say. All but the first begin in the folder where the first ends."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.docs.page import follow

DOCS = Path(__file__).resolve().parents[2] / "docs"
LATER = [
    *(
        pytest.param(page, marks=pytest.mark.slow)
        for page in sorted({*DOCS.glob("tutorials/*.md")} - {DOCS / "tutorials" / "own_data.md"})
    ),
    *(
        pytest.param(DOCS / f"{name}.md", marks=pytest.mark.slow)
        for name in ("published_runs", "howto/imbalance")
    ),
    *(DOCS / f"{name}.md" for name in ("coming_from", "kubernetes", "persia_on_kubernetes")),
    *(DOCS / "howto" / f"{name}.md" for name in ("memory", "serve_or_export", "vectors_in_pytorch")),
]

pytestmark = pytest.mark.cluster


def test_the_first_tutorial(begun: Path) -> None:
    assert (begun / "scores.csv").exists()


@pytest.mark.parametrize("page", LATER, ids=lambda page: page.stem)
def test_a_later_tutorial(page: Path, begun: Path, tmp_path: Path) -> None:
    follow(page, shutil.copytree(begun, tmp_path / "tutorial"))
