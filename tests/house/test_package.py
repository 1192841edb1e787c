"""The package: one version, and files without which it cannot be built or cited."""

from __future__ import annotations

import re
import tarfile
import tomllib
import zipfile
from pathlib import Path

import satrap
from tools_dev import wheel

ROOT = Path(__file__).resolve().parents[2]


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_version_stands_in_one_place() -> None:
    project = tomllib.loads(text("pyproject.toml"))
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"]["path"] == "src/satrap/__init__.py"


def test_the_citation_and_the_changelog_have_the_version() -> None:
    assert re.findall(r"^version: (.*)$", text("CITATION.cff"), re.MULTILINE) == [satrap.__version__]
    heading = re.search(r"^## (\S+),", text("CHANGELOG.md"), re.MULTILINE)
    assert heading is not None
    assert heading[1] == satrap.__version__


def test_the_tests_of_the_wheel_exist() -> None:
    assert [path for path in wheel.CORE if not (ROOT / path).exists()] == []


def test_what_a_wheel_or_an_sdist_lacks_is_found(tmp_path: Path) -> None:
    source = ROOT / "src"
    names = [path.relative_to(source).as_posix() for path in (source / "satrap").rglob("*.*")]
    for name, missing in (("whole", ""), ("part", "satrap/optim.py")):
        with zipfile.ZipFile(tmp_path / f"{name}.whl", "w") as archive:
            for file in {*names, "satrap-1.dist-info/METADATA"} - {missing}:
                archive.writestr(file, "")
    assert wheel.of_wheel(tmp_path / "whole.whl") == []
    assert wheel.of_wheel(tmp_path / "part.whl") == ["part.whl lacks satrap/optim.py"]
    with zipfile.ZipFile(tmp_path / "whole.whl", "a") as archive:
        archive.writestr("tests/conftest.py", "")
    assert wheel.of_wheel(tmp_path / "whole.whl") == [
        "whole.whl has tests/conftest.py, which is not of satrap"
    ]
    with tarfile.open(tmp_path / "some.tar.gz", "w:gz") as archive:
        archive.add(ROOT / "README.md", "satrap-1/README.md")
    assert "some.tar.gz lacks CITATION.cff" in wheel.of_source(tmp_path / "some.tar.gz")
