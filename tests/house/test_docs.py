"""What the documents say exists, exists: links, folders, names, recipes."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import click
import pytest

from satrap.cli.commands import satrap
from satrap.config.explain import walk
from satrap.config.source import dotted
from tests.house.measure import nodes, parsed
from tools_dev.stages import ALL, CI, TOOLS

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "satrap"
FOLDERS = [ROOT / "docs", ROOT / "benchmarks", ROOT / "examples", SOURCE]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in folder.rglob("*.md"))])
READMES = sorted(SOURCE.rglob("README.md"))
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


NOUNS = {
    "batch",
    "compatibility",
    "id_counts",
    "labels",
    "losses",
    "optim",
    "pairs",
    "retention",
    "schema",
    "sequences",
}


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
    assert {folder for folder, _ in table_of_folders()} == top_level("folder")
    assert set(re.findall(r'\["(\w+)/ ', diagram())) == top_level("folder")


def table_of_folders() -> list[tuple[str, str]]:
    """Name of each folder in the table, and the text of the last column; checks the link to its README."""
    rows = re.findall(r"^\| \[`(\w+)/`\]\((\S+)\) \|[^|\n]*\|([^|\n]*)\|$", ARCHITECTURE, flags=re.MULTILINE)
    assert all(link == f"../src/satrap/{folder}/README.md" for folder, link, _ in rows)
    return [(folder, others) for folder, _, others in rows]


def diagram() -> str:
    drawn = re.search(r"```mermaid\n(.*?)```", ARCHITECTURE, flags=re.DOTALL)
    assert drawn is not None
    return drawn[1]


@cache
def imports() -> set[tuple[str, str]]:
    """Pairs of nodes of the diagram of which the first imports the second, also inside functions.

    A node is a folder under src/satrap, "nouns" for the public modules beside the folders, or "errors".
    """
    found = set()
    for path in SOURCE.rglob("*.py"):
        importer = path.relative_to(SOURCE).with_suffix("").parts[0]
        for node in nodes(path):
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            found |= {(importer, name.split(".")[1]) for name in names if name.startswith("satrap.")}
    place = {folder: folder for folder in top_level("folder")} | dict.fromkeys(NOUNS, "nouns")
    place["errors"] = "errors"
    pairs = {(place[a], place[b]) for a, b in found if {a, b} <= place.keys()}
    return {(a, b) for a, b in pairs if a != b}


def test_the_diagram_shows_imports_and_a_path_for_every_import() -> None:
    arrows = set(re.findall(r'(\w+)(?:\[".*?"\])? --> (\w+)', diagram()))
    assert arrows - imports() == set(), "drawn, but not imported"
    paths = set(arrows)
    while longer := {(a, d) for a, b in paths for c, d in arrows if b == c} - paths:
        paths |= longer
    assert all((b, a) not in paths for a, b in paths), "a circle is drawn"
    assert imports() - paths == set(), "imported, but no path is drawn"


def test_folders_do_not_import_what_the_architecture_says_they_do_not() -> None:
    said = {
        (folder, other) for folder, others in table_of_folders() for other in re.findall(r"`(\w+)/`", others)
    }
    assert {other for _, other in said} <= top_level("folder")
    assert said & imports() == set()


def test_the_architecture_names_exactly_the_modules_that_exist() -> None:
    assert set(re.findall(r"^\| `(\w+\.py)` \|", ARCHITECTURE, flags=re.MULTILINE)) == top_level("module")
    assert {f"{name}.py" for name in NOUNS} | {"errors.py"} == top_level("module")
    drawn = re.search(r'nouns\["(.*?)"\]', diagram())
    assert drawn is not None
    assert set(drawn[1].split(", ")) == NOUNS


def test_no_folder_has_more_modules_than_the_architecture_allows() -> None:
    [most] = re.findall(r"No folder has more than (\d+) modules", ARCHITECTURE)
    folders = {path.parent for path in SOURCE.rglob("*.py")} - {SOURCE}
    counts = {folder: sum(path.stem[:2] != "__" for path in folder.glob("*.py")) for folder in folders}
    assert {folder: count for folder, count in counts.items() if count > int(most)} == {}


def test_the_architecture_is_short() -> None:
    assert len(ARCHITECTURE.splitlines()) <= 150


@pytest.mark.parametrize("folder", sorted(top_level("folder")))
def test_the_readme_of_a_folder_is_short_and_names_what_the_folder_holds(folder: str) -> None:
    text = (SOURCE / folder / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 70
    inside = [path for path in (SOURCE / folder).iterdir() if path.name[:2] != "__"]
    names = {f"{path.name}/" for path in inside if path.is_dir()} | {
        p.name for p in inside if p.suffix == ".py"
    }
    first_cells = "".join(re.findall(r"^\|([^|\n]*)\|", text, flags=re.MULTILINE))
    named = set(re.findall(r"`([\w./]+)`", first_cells))
    assert names - named - {f"{name.split('/')[0]}/" for name in named if "/" in name} == set()


@pytest.mark.parametrize("readme", READMES, ids=lambda path: str(path.parent.relative_to(SOURCE)))
def test_readmes_of_folders_name_files_and_classes_that_exist(readme: Path) -> None:
    text = readme.read_text(encoding="utf-8")
    for name in re.findall(r"`((?:\w+/)*\w+\.py|(?:\w+/)+)`", text):
        assert any((folder / name).exists() for folder in (readme.parent, SOURCE, ROOT)), name
    assert set(re.findall(r"`((?:[A-Z][a-z]+){2,})`", text)) <= classes() | {"PipelineStage"}  # of PyTorch


@cache
def classes() -> set[str]:
    return {
        node.name for path in SOURCE.rglob("*.py") for node in nodes(path) if isinstance(node, ast.ClassDef)
    }


def test_tools_do_not_import_what_their_readme_says_they_do_not() -> None:
    text = (SOURCE / "tools" / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w/]+)/` \|[^|\n]*\|([^|\n]*)\|$", text, flags=re.MULTILINE)
    assert {folder for folder, _ in rows} >= {
        p.name for p in (SOURCE / "tools").iterdir() if p.name[:2] != "__"
    } - {"README.md"}
    for folder, others in rows:
        modules = [
            node.module or ""
            for path in (SOURCE / "tools" / folder).rglob("*.py")
            for node in nodes(path)
            if isinstance(node, ast.ImportFrom)
        ]
        for other in re.findall(r"`(\w+)/`", others):
            assert not [name for name in modules if f"{name}.".startswith(f"satrap.{other}.")], (
                folder,
                other,
            )


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
    assert {name for stage in ALL for name in stage.command.split()[1:]} <= targets
    tools = re.search(r"^TOOLS .*addprefix tests/,([\w ]+)\)", makefile, re.MULTILINE)
    assert tools is not None
    assert tuple(tools[1].split()) == TOOLS


def test_contributing_says_what_ci_runs() -> None:
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    said = re.search(r"^`\.ci/run` runs (.*?)\.\n", contributing, re.MULTILINE | re.DOTALL)
    assert said is not None
    assert re.findall(r"`(.+?)`", said[1].replace("\n", " ")) == [stage.command for stage in CI]


def test_contributing_names_the_folders_of_tests_that_mirror_no_folder_of_the_source() -> None:
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    folders = {path.name for path in (ROOT / "tests").iterdir() if (path / "__init__.py").exists()}
    assert set(re.findall(r"`tests/(\w+)/`", contributing)) == folders - top_level("folder")


def test_every_guarantee_has_a_link_to_its_proof() -> None:
    guarantees = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    promises = re.findall(r"^\| \*\*.*$", guarantees, re.MULTILINE)
    assert len(promises) > 90
    assert [line for line in promises if not re.search(r"\]\(\.\./(tests|tools_dev|benchmarks)/", line)] == []


def test_the_way_of_a_batch_names_functions_that_exist() -> None:
    page = ROOT / "docs" / "one_batch.md"
    row = r"^\| \[([\w/.]+)\]\((\S+)\) \| `([\w.]+)` \|"
    steps = re.findall(row, page.read_text(encoding="utf-8"), re.MULTILINE)
    local = page.read_text(encoding="utf-8").partition("\n## Over shard servers")[0]
    assert 10 <= len(re.findall(row, local, re.MULTILINE)) <= 20
    for name, link, function in steps:
        path = (page.parent / link).resolve()
        assert path == SOURCE / name
        scope: ast.AST = parsed(path)
        for part in function.split("."):
            inner = {getattr(node, "name", None): node for node in ast.iter_child_nodes(scope)}
            assert part in inner, f"{name} has no {function}"
            scope = inner[part]


def test_the_documents_name_commands_and_keys_that_exist() -> None:
    keys = {dotted((*pattern, key)) for pattern, model in walk() for key in model.model_fields}
    sections = {key.split(".")[0] for key in keys}
    for document in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *READMES]:
        text = document.read_text(encoding="utf-8")
        for words in re.findall(r"`satrap ([a-z][a-z -]*)", text):
            command, *rest = words.split()
            assert command in satrap.commands, f"{document.name}: satrap {words}"
            group = satrap.commands[command]
            assert not rest or not isinstance(group, click.Group) or rest[0] in group.commands, words
        for key in re.findall(r"`([a-z]+\.[a-z_.]+[a-z])`", text):
            if key.split(".")[0] in sections and not key.endswith(
                (".py", ".md", ".json", ".jsonl", ".safetensors")
            ):
                assert key in keys, f"{document.name}: {key}"


def test_the_documents_name_files_of_the_repository_that_exist() -> None:
    ours = r"`((?:src|tests|tools_dev|docs|benchmarks|examples)/[\w./-]*|(?:\w+/)+\w+\.py)`"
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    for document in documents:
        if document.name != "CHANGELOG.md":  # it also names files that have gone since
            for name in re.findall(ours, document.read_text(encoding="utf-8")):
                assert any((folder / name).exists() for folder in (ROOT, SOURCE)), f"{document.name}: {name}"
