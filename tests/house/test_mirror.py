"""Each module of the package has a test file of its own: `store/snapshot/cut.py` has
`tests/store/snapshot/test_cut.py`."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WITHOUT = Path(__file__).with_name("without_tests.txt").read_text(encoding="utf-8").split()
"""Modules that only tests of others cover. The list shrinks: who adds a test file takes its name out."""


def without_tests() -> set[str]:
    source = ROOT / "src" / "satrap"
    modules = {path.relative_to(source) for path in source.rglob("*.py") if not path.name.startswith("__")}
    return {m.as_posix() for m in modules if not (ROOT / "tests" / m.parent / f"test_{m.name}").exists()}


def test_every_module_has_a_test_file_but_those_on_the_list() -> None:
    assert without_tests() == set(WITHOUT)


def test_the_list_is_in_order() -> None:
    assert sorted(set(WITHOUT)) == WITHOUT
