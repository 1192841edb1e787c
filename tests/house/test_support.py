"""What several test files share stands in a module without tests: none imports from a `test_*.py`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.house.measure import nodes

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("tests", "tools_dev", "benchmarks")


def from_tests(root: Path) -> Iterator[str]:
    """Yield where something is imported from a test file, as `file:line name`."""
    for path in sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py")):
        place = path.relative_to(root)
        for node in nodes(path):
            for name in imported(node, place):
                first, *inner = name.split(".")
                if first == "tests" and any(part.startswith("test_") for part in inner):
                    yield f"{place.as_posix()}:{getattr(node, 'lineno', 0)} {name}"


def imported(node: ast.AST, place: Path) -> list[str]:
    """Return the full names that a statement imports in a file; `place` is its path from the root."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    package = place.parts[: -node.level] if node.level else ()
    module = ".".join([*package, *([node.module] if node.module else [])])
    return [f"{module}.{alias.name}" for alias in node.names]


def test_nothing_is_imported_from_a_test_file() -> None:
    assert list(from_tests(ROOT)) == []


def test_every_way_to_import_from_a_test_file_is_found(tmp_path: Path) -> None:
    ways = [
        "import tests.store.snapshot.test_cut",
        "from tests.store import test_cut",
        "from tests.store.snapshot.test_cut import shard",
        "from .test_cut import shard",
        "from . import test_cut, shards",
        "from ..store.test_cut import shard",
        "def later():\n    from tests.store.snapshot.test_cut import shard",
    ]
    allowed = ["from tests.store.shards import shard", "from . import shards", "from torch import test_it"]
    (tmp_path / "tests" / "store").mkdir(parents=True)
    for number, way in enumerate([*ways, *allowed]):
        (tmp_path / "tests" / "store" / f"x{number}.py").write_text(way, encoding="utf-8")
    found = [line.split(":")[0] for line in from_tests(tmp_path)]
    assert found == [f"tests/store/x{number}.py" for number in range(len(ways))]
