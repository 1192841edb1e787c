"""No module imports one that imports it: not through others, not for types only, not inside a function."""

from __future__ import annotations

import ast
import re
from collections.abc import Container
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from tests.house.measure import nodes

SOURCE = Path(__file__).resolve().parents[2] / "src"


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def imports() -> dict[str, set[str]]:
    """Return the modules that each module names in an import statement, wherever it stands."""
    paths = {name_of(path): path for path in (SOURCE / "satrap").rglob("*.py")}
    return {
        name: {wanted for node in nodes(path) for wanted in named(node, paths) if wanted != name}
        for name, path in paths.items()
    }


def named(node: ast.AST, modules: Container[str]) -> set[str]:
    """Return the modules that a statement imports; of "from package import module" only the module."""
    if isinstance(node, ast.ImportFrom):
        inner = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        return {full if full in modules else str(node.module) for full in inner.values()}
    return {alias.name for alias in node.names} if isinstance(node, ast.Import) else set()


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Return the modules that are left when those that import nothing that is left are taken away."""
    left = {name: set(wanted) for name, wanted in graph.items()}
    while free := [name for name, wanted in left.items() if not wanted & left.keys()]:
        for name in free:
            del left[name]
    return sorted(left)


def test_there_is_no_import_circle() -> None:
    assert circle(imports()) == []


def test_a_circle_would_be_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": set()}) == ["a", "b", "c", "d"]
    assert circle({"a": {"b"}, "b": set()}) == []


def test_programs_in_strings_and_pages_import_names_that_exist() -> None:
    root = SOURCE.parent
    files = [p for folder in ("src", "tests", "docs", "examples") for p in (root / folder).rglob("*.py")]
    wrong = []
    for path in (*files, *(root / "docs").rglob("*.md"), root / "README.md"):
        text = path.read_text(encoding="utf-8")
        for module, names in re.findall(r"^from (satrap[\w.]*) import ([\w, ]+)$", text, re.MULTILINE):
            if module.startswith("satrap.store.gpu.kernels.") and find_spec("triton") is None:
                continue
            loaded = import_module(module)
            for name in re.split(r", *", names.strip()):
                plain = name.split(" as ")[0]
                if not hasattr(loaded, plain) and find_spec(f"{module}.{plain}") is None:
                    wrong.append(f"{path.relative_to(root)}: from {module} import {plain}")
    assert wrong == []


PRIVATE = re.compile(r"torch(\.\w+)*\._[a-z]\w*(\.|$)")
CORE = ("dense", "train", "models", "launch", "embedding", "exchange", "store")


def private_imports(source: str) -> list[str]:
    """Return the private modules of PyTorch that a program imports, or reaches through attributes."""
    found = list[str]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if PRIVATE.match(alias.name)]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found += [name for name in names if PRIVATE.match(name)]
    return found + re.findall(r"\bnn\.modules(?:\.\w+)*\._\w+", source)


def test_the_core_imports_no_private_module_of_pytorch() -> None:
    files = [path for package in CORE for path in (SOURCE / "satrap" / package).rglob("*.py")]
    assert len(files) > 100
    wrong = {str(path): names for path in files if (names := private_imports(path.read_text()))}
    assert wrong == {}


def test_a_private_module_of_pytorch_would_be_found() -> None:
    for line in (
        "import torch._dynamo",
        "from torch import _inductor",
        "from torch._subclasses.fake_tensor import FakeTensorMode",
        "from torch.utils._pytree import tree_map",
        "BatchNorm = nn.modules.batchnorm._BatchNorm",
    ):
        assert len(private_imports(line)) == 1, line
    assert private_imports("import torch.nn\nfrom torch.overrides import TorchFunctionMode") == []
