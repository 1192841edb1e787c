"""Makes the site of `make docs` complete: MkDocs calls these functions, see `hooks` in `mkdocs.yml`.

Documents link to other files and folders of the repository. On the site, those are pages, too: Markdown as it
is, code in a block, a folder as a list of what it holds. At the end nothing may be left that a browser would
load from another server.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

LINK = re.compile(r"(?<=\]\()([^)\s#]+)(#[^)\s]*)?(?=\))")
CODE = {".py": "python", ".yaml": "yaml", ".toml": "toml", "": "text"}
LOADED = re.compile(
    r"<(?:script|link|img|iframe|source|object|embed)\b[^>]*?\s(?:src|href|data)=[\"']?((?:https?:)?//[^\"'\s>]+)"
    r"|(?:url\(|@import)\s*[\"']?((?:https?:)?//[^\"')\s]+)"
    r"|class=[\"']?(mermaid)\b"  # the theme would load the program that draws these
)

_origins: dict[str, str] = {}
"""Address of a page in the site -> path in the repository, of the build that is under way."""


def address(path: str, root: Path) -> str:
    """Return where a file or folder of the repository is on the site, as MkDocs names sources."""
    if (root / path).is_dir():
        readme = posixpath.join(path, "README.md")
        path = readme if (root / readme).exists() else posixpath.join(path, "index.md")
    elif Path(path).suffix in CODE:
        path += ".md"
    return path.removeprefix("docs/") if path.startswith("docs/") else f"repository/{path}"


def folder(path: str, root: Path) -> str:
    """Return what links on the page of a file or folder are relative to."""
    return path if (root / path).is_dir() else posixpath.dirname(path)


def targets(path: str, root: Path) -> list[str]:
    """Return the files and folders of the repository that a page links to."""
    names = [name for name, _ in LINK.findall(content(path, root) or "") if not re.match(r"[a-z]+:", name)]
    return [posixpath.normpath(posixpath.join(folder(path, root), name)) for name in names]


def content(path: str, root: Path) -> str | None:
    """Return the page of a file or folder as Markdown; None for what is copied as it is."""
    place = root / path
    if place.is_dir():
        pages = [*place.glob("*/README.md"), *place.glob("*.md"), *place.glob("*.py"), *place.glob("*.yaml")]
        names = sorted(page.relative_to(place).as_posix() for page in pages)
        return f"# {path}\n\n" + "".join(f"- [{name.removesuffix('/README.md')}]({name})\n" for name in names)
    if place.suffix == ".md":
        return place.read_text(encoding="utf-8")
    if place.suffix in CODE:
        return f"# {path}\n\n~~~~~~{CODE[place.suffix]}\n{place.read_text(encoding='utf-8')}\n~~~~~~\n"
    return None


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add a page for everything the documents link to, and what those link to."""
    root = Path(config.config_file_path).parent
    _origins.clear()
    _origins.update({file.src_uri: f"docs/{file.src_uri}" for file in files})
    waiting = [path for path in _origins.values() if path.endswith(".md")]
    while waiting:
        path = waiting.pop()
        for target in targets(path, root):
            if (root / target / "README.md").exists():
                target = posixpath.join(target, "README.md")
            uri = address(target, root)
            if uri in _origins or not (root / target).exists():  # of what does not exist, MkDocs warns
                continue
            _origins[uri] = target
            text = content(target, root)
            if text is None:
                files.append(File.generated(config, uri, abs_src_path=str(root / target)))
            else:
                files.append(File.generated(config, uri, content=text))
                waiting.append(target)
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links between files of the repository lead to their pages."""
    root, uri = Path(config.config_file_path).parent, page.file.src_uri
    if not _origins[uri].endswith(".md"):
        page.meta["search"] = {"exclude": True}
    elif uri.startswith(("decisions/", "repository/")):
        page.meta["search"] = {"boost": 0.3}  # a reader who searches wants guides before reasons and figures
    base = folder(_origins[uri], root)

    def moved(link: re.Match[str]) -> str:
        name, fragment = link.groups(default="")
        target = posixpath.normpath(posixpath.join(base, name))
        if re.match(r"[a-z]+:", name) or not (root / target).exists():
            return link[0]
        return posixpath.relpath(address(target, root), posixpath.dirname(uri) or ".") + fragment

    return LINK.sub(moved, markdown)


def on_post_build(*, config: MkDocsConfig) -> None:
    """Refuse a site that would load anything from another server."""
    if found := external(Path(config.site_dir)):
        raise PluginError("the site would load from other servers:\n" + "\n".join(found))


def external(site: Path) -> list[str]:
    """Return what pages and styles of a site load from elsewhere, as `file: address`."""
    paths = [path for path in sorted(site.rglob("*")) if path.suffix in (".html", ".css", ".svg")]
    return [
        f"{path.relative_to(site)}: {''.join(found)}"
        for path in paths
        for found in LOADED.findall(path.read_text(encoding="utf-8"))
    ]
