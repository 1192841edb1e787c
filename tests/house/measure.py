"""Measure the size and the manners of a source tree with `ast`. `python -m tests.house.measure` prints it."""

from __future__ import annotations

import ast
import gc
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src" / "satrap"

# A recipe or a message from the network must never be able to run code.
FORBIDDEN_IMPORTS = {"pickle", "cloudpickle", "dill", "marshal", "shelve"}
FORBIDDEN_CALLS = {"eval", "exec", "torch.load", "yaml.load", "pickle.loads", "numpy.load", "np.load"}
CATCH_ALLS = {"Exception", "BaseException"}
ENVIRONMENT = {"os.environ", "os.getenv", "os.environb", "os.putenv"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(slots=True)
class Report:
    """What was found: sizes as (size, place), and lists of places that break a rule.

    Attributes:
        files, functions, class_lines: lines.
        classes: public methods.
        constructors, parameters: parameters of constructors, by class, and of other functions.
    """

    files: list[tuple[int, str]] = field(default_factory=list)
    functions: list[tuple[int, str]] = field(default_factory=list)
    classes: list[tuple[int, str]] = field(default_factory=list)
    class_lines: list[tuple[int, str]] = field(default_factory=list)
    constructors: list[tuple[int, str]] = field(default_factory=list)
    parameters: list[tuple[int, str]] = field(default_factory=list)
    undocumented: list[str] = field(default_factory=list)
    unannotated: list[str] = field(default_factory=list)
    forbidden: list[str] = field(default_factory=list)
    catch_alls: list[str] = field(default_factory=list)
    environment: set[str] = field(default_factory=set)


@cache
def parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a file, for all tests that look at it."""
    gc.disable()  # half a million nodes that all stay: each collection would look at them
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    finally:
        gc.freeze()
        gc.enable()


@cache
def nodes(path: Path) -> list[ast.AST]:
    """Return all nodes of that tree."""
    return list(ast.walk(parsed(path)))


def measure(source: Path = SOURCE) -> Report:
    """Return the report over all Python files under `source`."""
    report = Report()
    for path in sorted(source.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        name = path.relative_to(source).as_posix()
        if text.strip():
            report.files.append((text.count("\n"), name))
            _module(parsed(path), name, report)
    return report


def _module(tree: ast.Module, name: str, report: Report) -> None:
    if ast.get_docstring(tree) is None:
        report.undocumented.append(name)
    for node in ast.walk(tree):
        place = f"{name}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, Function):
            report.functions.append((_lines(node), f"{place} {node.name}"))
            if node.name != "__init__":
                report.parameters.append((len(_parameters(node)), f"{place} {node.name}"))
            _annotations(node, place, report)
        elif isinstance(node, ast.ClassDef):
            public = [n for n in node.body if isinstance(n, Function) and not n.name.startswith("_")]
            report.classes.append((len(public), f"{place} {node.name}"))
            report.class_lines.append((_lines(node), f"{place} {node.name}"))
            made = [n for n in node.body if isinstance(n, Function) and n.name == "__init__"]
            report.constructors += [(len(_parameters(n)), f"{place} {node.name}") for n in made]
        _manners(node, place, name, report)
    report.undocumented += [f"{name}:{line} {what}" for line, what in _public_without_docstring(tree)]


def _lines(node: Function | ast.ClassDef) -> int:
    """Lines of a function or class with its docstring, from its first to its end; decorators do not count."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _parameters(node: Function) -> list[str]:
    """Return the names of a function's parameters, `*rest` and `**named` too, without `self` and `cls`."""
    every = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
    rest = [a for a in (node.args.vararg, node.args.kwarg) if a is not None]
    return [a.arg for a in every + rest if a.arg not in ("self", "cls")]


def _public_without_docstring(tree: ast.Module | ast.ClassDef) -> Iterator[tuple[int, str]]:
    for node in tree.body:
        if isinstance(node, (*Function.__args__, ast.ClassDef)) and not node.name.startswith("_"):
            if ast.get_docstring(node) is None and not _overload(node):
                yield node.lineno, node.name
            if isinstance(node, ast.ClassDef):
                yield from _public_without_docstring(node)


def _overload(node: ast.AST) -> bool:
    decorators = getattr(node, "decorator_list", [])
    return any(ast.unparse(d).split("(")[0].split(".")[-1] in ("overload", "setter") for d in decorators)


def _annotations(node: Function, place: str, report: Report) -> None:
    kernel = any("jit" in ast.unparse(d) for d in node.decorator_list)
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    missing = [a.arg for a in arguments if a.annotation is None and a.arg not in ("self", "cls")]
    if (missing or node.returns is None) and not kernel:
        report.unannotated.append(f"{place} {node.name}")


def _manners(node: ast.AST, place: str, name: str, report: Report) -> None:
    if isinstance(node, ast.Import):
        report.forbidden += [f"{place} {a.name}" for a in node.names if a.name in FORBIDDEN_IMPORTS]
    elif isinstance(node, ast.ImportFrom):
        if node.module in FORBIDDEN_IMPORTS:
            report.forbidden.append(f"{place} {node.module}")
        if node.module == "os" and any(f"os.{a.name}" in ENVIRONMENT for a in node.names):
            report.environment.add(name)
    elif isinstance(node, ast.Call) and ast.unparse(node.func) in FORBIDDEN_CALLS:
        if not _without_pickle(node):
            report.forbidden.append(f"{place} {ast.unparse(node.func)}")
    elif isinstance(node, ast.Attribute) and ast.unparse(node) in ENVIRONMENT:
        report.environment.add(name)
    elif isinstance(node, ast.ExceptHandler) and _catches_all(node):
        report.catch_alls.append(place)


def _without_pickle(node: ast.Call) -> bool:
    """`numpy.load(..., allow_pickle=False)` is safe and may be spelled out."""
    return any(
        k.arg == "allow_pickle" and isinstance(k.value, ast.Constant) and k.value.value is False
        for k in node.keywords
    )


def _catches_all(node: ast.ExceptHandler) -> bool:
    """Whether a handler swallows everything; one that ends in a bare `raise` only looks and passes it on."""
    if isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None:
        return False
    kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
    return any(kind is None or ast.unparse(kind) in CATCH_ALLS for kind in kinds)


def table(report: Report) -> str:
    """Return the report as text: one line per measure."""

    def row(label: str, sizes: list[tuple[int, str]]) -> str:
        counts = sorted(n for n, _ in sizes)
        longest, place = max(sizes)
        p90 = counts[min(len(counts) - 1, round(0.9 * len(counts)))]
        return f"{label:26}{len(counts):6}{statistics.median(counts):8.0f}{p90:6}{longest:6}  {place}"

    lines = [
        f"{'':26}{'count':>6}{'median':>8}{'p90':>6}{'max':>6}  largest",
        row("lines a file", report.files),
        row("lines a function", report.functions),
        row("lines a class", report.class_lines),
        row("public methods a class", report.classes),
        row("parameters a constructor", report.constructors),
        row("parameters a function", report.parameters),
        f"{'source lines':26}{sum(n for n, _ in report.files):6}",
    ]
    for label in ("undocumented", "unannotated", "forbidden", "catch_alls", "environment"):
        places = sorted(getattr(report, label))
        lines.append(f"{label:26}{len(places):6}  {', '.join(places[:4])}")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(measure(Path(sys.argv[1]) if len(sys.argv) > 1 else SOURCE)))
