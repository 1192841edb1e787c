"""What the documents say exists, exists: links, folders, names, recipes."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "satrap"
FOLDERS = [ROOT / "docs", ROOT / "benchmarks", ROOT / "examples", SOURCE]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in folder.rglob("*.md"))])
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def top_level(kind: str) -> set[str]:
    """Names of the folders or modules directly under src/satrap that hold something."""
    if kind == "folder":
        return {p.name for p in SOURCE.iterdir() if p.is_dir() and any(f.is_file() for f in p.iterdir())} - {
            "__pycache__"
        }
    return {p.name for p in SOURCE.glob("*.py")} - {"__init__.py"}


def anchor(heading: str) -> str:
    """The fragment a heading is reached by."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_resolve(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for target in re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, fragment = target.partition("#")
        path = (document.parent / name).resolve() if name else document
        assert path.exists(), f"{document.name}: {target}"
        if fragment:
            headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
            assert fragment in map(anchor, headings), f"{document.name}: {target}"


def test_the_architecture_names_exactly_the_folders_that_exist() -> None:
    assert set(re.findall(r"^\| `(\w+)/` \|", ARCHITECTURE, flags=re.MULTILINE)) == top_level("folder")
    drawn = re.search(r"```mermaid\n(.*?)```", ARCHITECTURE, flags=re.DOTALL)
    assert drawn is not None
    assert set(re.findall(r'\["(\w+)/ ', drawn[1])) == top_level("folder")


def test_the_architecture_names_exactly_the_modules_that_exist() -> None:
    assert set(re.findall(r"`(\w+\.py)`", ARCHITECTURE)) == top_level("module")


def test_python_blocks_of_the_readme_compile() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert blocks != []
    for block in blocks:
        compile(block, "README.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_commands_of_the_readme_are_targets_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, flags=re.MULTILINE))
    for name in ("README.md", "CONTRIBUTING.md"):
        used = set(re.findall(r"^make ([a-z-]+)", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE))
        assert used, name
        assert used <= targets, name
    assert set(re.findall(r"make ([a-z-]+)", (ROOT / ".ci" / "run").read_text(encoding="utf-8"))) <= targets
