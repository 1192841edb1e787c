"""Defaults are those that the documentation tells: "Args: name: ..., default 4." says what the code does."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.house.measure import nodes

ROOT = Path(__file__).resolve().parents[2] / "src" / "satrap"
TRUTH = {"on": True, "off": False, "True": True, "False": False}
TOLD = re.compile(
    r"\bdefault (-?\d[\d,.]*(?<![,.])(?:e\d+)?|True|False|on\b|off\b)(?: and (\d+))?"
    r"(?![\w^%]| [/*]| [KMG]i?[Bb]| times)"
)
"""A number, a truth value, or two numbers, that stand by themselves."""


def arguments(docstring: str) -> dict[str, str]:
    """Return, by name, what the section Args says of an argument that is described alone."""
    _, _, section = inspect.cleandoc(docstring).partition("\nArgs:\n")
    lines = section.split("\n\n")[0].splitlines()
    found, name = dict[str, str](), ""
    for line in lines:
        if match := re.match(r" {4}(\w+): (.*)", line):
            name, text = match.groups()
            found[name] = text
        elif line.startswith(" " * 8) and name:
            found[name] += " " + line.strip()
        else:
            name = ""
    return found


def defaults(node: ast.FunctionDef | ast.ClassDef) -> dict[str, ast.expr]:
    """Return, by name, the defaults of a function, or of what makes a class."""
    if isinstance(node, ast.FunctionDef):
        args = node.args
        plain = args.args[len(args.args) - len(args.defaults) :]
        named = zip(args.kwonlyargs, args.kw_defaults, strict=True)
        return {a.arg: d for a, d in [*zip(plain, args.defaults, strict=True), *named] if d is not None}
    for one in node.body:
        if isinstance(one, ast.FunctionDef) and one.name == "__init__":
            return defaults(one)
    fields = [one for one in node.body if isinstance(one, ast.AnnAssign) and one.value is not None]
    return {ast.unparse(one.target): value for one in fields if (value := of_field(one.value)) is not None}


def of_field(value: ast.expr | None) -> ast.expr | None:
    """Return the default of a field of a dataclass."""
    if isinstance(value, ast.Call):
        return next((one.value for one in value.keywords if one.arg == "default"), None)
    return value


def told() -> Iterator[tuple[str, Any, Any]]:
    """Yield (place, default that is documented, default of the code)."""
    for path in sorted(ROOT.rglob("*.py")):
        for node in nodes(path):
            if not isinstance(node, (ast.FunctionDef, ast.ClassDef)) or not (text := ast.get_docstring(node)):
                continue
            own = defaults(node)
            for name, said in arguments(text).items():
                match = TOLD.search(said)
                if match is None or name not in own:
                    continue
                try:
                    value = ast.literal_eval(own[name])
                except ValueError:
                    continue  # a constant with a name, or what is computed
                if value is None:
                    continue  # which stands for what is told
                texts = [one.replace(",", "") for one in match.groups() if one]
                numbers = tuple(TRUTH[one] if one in TRUTH else float(one) for one in texts)
                given = value if isinstance(value, tuple) else (value,)
                yield f"{path.relative_to(ROOT)}: {node.name}({name})", numbers, given


def test_defaults_are_those_of_the_documentation() -> None:
    found = list(told())
    assert len(found) > 60
    assert [(place, said, value) for place, said, value in found if said != value] == []
