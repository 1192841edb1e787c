"""Every tutorial does what it says. Those after the first begin in the folder where the first ends."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.docs.page import follow

DOCS = Path(__file__).resolve().parents[2] / "docs"
FIRST = DOCS / "tutorials" / "own_data.md"
LATER = [
    *(
        pytest.param(page, marks=pytest.mark.slow)
        for page in sorted({*DOCS.glob("tutorials/*.md")} - {FIRST})
    ),
    pytest.param(DOCS / "published_runs.md", marks=pytest.mark.slow),
    *(DOCS / f"{name}.md" for name in ("coming_from", "kubernetes", "persia_on_kubernetes")),
]

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="session")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tutorial")
    follow(FIRST, folder)
    return folder


def test_the_first_tutorial(begun: Path) -> None:
    assert (begun / "scores.csv").exists()


@pytest.mark.parametrize("page", LATER, ids=lambda page: page.stem)
def test_a_later_tutorial(page: Path, begun: Path, tmp_path: Path) -> None:
    follow(page, shutil.copytree(begun, tmp_path / "tutorial"))
