"""The programs in examples/own_loop train, and score alike after their checkpoint has been loaded."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "own_loop"


@pytest.mark.parametrize("program", ["plain", "with_lightning", "with_accelerate"])
@pytest.mark.filterwarnings("default")  # of the other libraries
def test_an_example(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if program != "plain":
        pytest.importorskip(program.removeprefix("with_"))
    monkeypatch.syspath_prepend(str(FOLDER))
    before, after = runpy.run_path(str(FOLDER / f"{program}.py"))["main"](tmp_path)
    assert before == after < 0.65
    assert any(tmp_path.iterdir())


def test_the_readme_names_every_program() -> None:
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert all(f"`{path.name}`" in text for path in FOLDER.glob("*.py"))
