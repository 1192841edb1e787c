"""A default that a docstring states is the default."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
STATED = re.compile(r"[Dd]efault (-?\d[\d,_]*\.?\d*(?:e-?\d+)?|\"[^\"]*\"|True|False)( [KMG]iB)?")
"""A number, text or truth value."""


def arguments(docstring: str) -> dict[str, str]:
    """Return what a docstring says about each argument that has an entry of its own."""
    section = re.search(r"^( *)Args:\n((?:\1 +.*\n|\n)*)", docstring + "\n", re.MULTILINE)
    if section is None:
        return {}
    indent = " " * (len(section[1]) + 4)
    found, name = {"": ""}, ""
    for line in section[2].splitlines():
        if entry := re.match(rf"{indent}([\w*, ]+): (.*)", line):
            name, line = entry[1].strip(" *"), entry[2]
            found[name] = ""
        found[name] += f" {line.strip()}"
    return found


def defaults(node: ast.FunctionDef | ast.ClassDef) -> dict[str, ast.expr]:
    """Return the default of each argument: of a function, of a class's `__init__`, or of its fields."""
    if isinstance(node, ast.FunctionDef):
        a = node.args
        positional = [*a.posonlyargs, *a.args]
        pairs = [*zip(positional[len(positional) - len(a.defaults) :], a.defaults, strict=True)]
        pairs += [(arg, value) for arg, value in zip(a.kwonlyargs, a.kw_defaults, strict=True) if value]
        return {arg.arg: value for arg, value in pairs}
    found: dict[str, ast.expr] = {}
    for part in node.body:
        if isinstance(part, ast.FunctionDef) and part.name == "__init__":
            found |= defaults(part)
        elif isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name) and part.value:
            found[part.target.id] = part.value
    return found


def value_of(expression: ast.expr, names: dict[str, ast.expr]) -> object:
    """Return the value of a default: literals, simple arithmetic, and constants of the module."""
    expression = names.get(expression.id, expression) if isinstance(expression, ast.Name) else expression
    try:
        return eval(compile(ast.Expression(expression), "", "eval"), {"__builtins__": {}})
    except (NameError, TypeError, AttributeError):
        return None


def statements(path: Path) -> Iterator[tuple[str, object, object]]:
    """Yield (where, stated default, real default) of a module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {
        part.targets[0].id: part.value
        for part in tree.body
        if isinstance(part, ast.Assign) and isinstance(part.targets[0], ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            real = defaults(node)
            for name, text in arguments(ast.get_docstring(node) or "").items():
                stated = STATED.search(text)
                value = value_of(real[name], names) if name in real else None
                if stated and isinstance(value, int | float | str):
                    said = ast.literal_eval(stated[1].rstrip(",.").replace(",", "_"))
                    where = f"{path.name}:{node.lineno} {name}"
                    yield where, said * UNITS.get((stated[2] or "").strip(), 1), value


def test_what_docstrings_say_about_defaults_is_true() -> None:
    found = [one for path in sorted((ROOT / "src").rglob("*.py")) for one in statements(path)]
    assert len(found) > 30
    assert not [
        f"{where}: {stated!r} is stated, {real!r} is true" for where, stated, real in found if stated != real
    ]


@pytest.mark.parametrize(
    ("stated", "real", "wrong"),
    [
        ("default 30", "30.0", False),
        ("default 30 s", "60.0", True),
        ('default "a"', '"b"', True),
        ("default 2 MiB", "2 << 20", False),
        ("text,\n            default True", "LATER", True),
    ],
)
def test_it_can_fail(stated: str, real: str, wrong: bool, tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        f'LATER = False\nclass A:\n    """A.\n\n    Args:\n        x: {stated}.\n    """\n\n'
        f"    def __init__(self, x=({real})):\n        pass\n"
    )
    [(_, said, true)] = statements(module)
    assert (said != true) == wrong
