"""The site: everything is on it, and nothing of it comes from another server."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import re
from pathlib import Path
from types import ModuleType

import pytest

import satrap

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
CONFIG = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


def listed() -> list[str]:
    return re.findall(r"^ +- .+: (\S+\.md)$", CONFIG.split("\nnav:\n")[1], re.MULTILINE)


def test_every_page_is_in_the_navigation() -> None:
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    decisions = {page for page in pages if page.startswith("decisions/")}
    assert sorted(listed()) == sorted(pages - decisions | {"decisions/index.md"})  # their list is made


def test_the_home_page_links_every_page_of_the_navigation() -> None:
    home = (DOCS / "README.md").read_text(encoding="utf-8")
    links = {
        link.partition("#")[0].replace("decisions/", "decisions/index.md")
        for link in re.findall(r"\]\(([^)]+)\)", home)
    }
    assert set(listed()) - {"README.md"} <= links


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.stem)
def test_what_belongs_to_a_list_is_indented_by_four(page: Path) -> None:
    """Otherwise the site ends the list there, and counts from 1 again."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    assert re.findall(r"^\n {1,3}(?! )[|\w].*", text, re.MULTILINE) == []


def public(package: str) -> list[str]:
    """Classes and functions that a package exports; constants are documented where they are used."""
    module = importlib.import_module(f"satrap.{package}")
    exported = {name: getattr(module, name) for name in module.__all__}
    return [name for name, value in exported.items() if inspect.isclass(value) or inspect.isfunction(value)]


def test_the_reference_has_every_public_name() -> None:
    shown = [
        name
        for page in (DOCS / "reference").glob("*.md")
        for name in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert len(shown) == len(set(shown))
    for name in satrap.__all__:
        assert f"satrap.{name}" in shown or name in public("train"), name
    assert {"satrap.report", "satrap.dense"} <= set(shown)


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    pytest.importorskip("mkdocs", reason="installed by `make docs`")
    spec = importlib.util.spec_from_file_location("hooks", DOCS / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://example.org/a.js"></script>',
        "<script async src=//example.org/a.js></script>",
        '<link rel="stylesheet" href="https://example.org/a.css">',
        '<img alt="x" src="http://example.org/a.png">',
        "<style>@import 'https://example.org/a.css'</style>",
        "<style>p { background: url(https://example.org/a.png) }</style>",
        '<pre class="mermaid"><code>',
    ],
)
def test_what_comes_from_another_server_is_found(hooks: ModuleType, tmp_path: Path, text: str) -> None:
    (tmp_path / "page.html").write_text(f"<p>{text}</p>", encoding="utf-8")
    assert len(hooks.external(tmp_path)) == 1


def test_links_that_a_reader_follows_are_no_such_thing(hooks: ModuleType, tmp_path: Path) -> None:
    text = '<a href="https://example.org">x</a><script src="a.js"></script><img src="../a.png">'
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    assert hooks.external(tmp_path) == []


@pytest.mark.slow
def test_the_site_is_built(hooks: ModuleType, tmp_path: Path) -> None:
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path), strict=True)
    build(config)
    for package in ("data", "models", "train", "metrics", "store", "report", "dense"):
        html = (tmp_path / "reference" / f"{package}.html").read_text(encoding="utf-8")
        for name in public(package):
            own = rf'id="satrap\.{package}\.({name}\.)?{name}"'  # a module may have its function's name
            assert re.search(own, html), name
    places = {
        page["location"]
        for page in json.loads((tmp_path / "search" / "search_index.json").read_text())["docs"]
    }
    assert "howto/memory.html" in places
    assert [place for place in places if ".py" in place] == []
    assert (tmp_path / "search" / "search_index.js").exists()  # for pages that are opened as files
    assert "javascripts/iframe-worker.js" in (tmp_path / "index.html").read_text(encoding="utf-8")
