"""All small faults that can be planted in a source file, each a replacement of a few bytes."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Function = ast.FunctionDef | ast.AsyncFunctionDef
Planted = tuple[str, ast.AST, str]
"""Operator, the node that is replaced, and the text that replaces it."""

COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitOr,
}  # fmt: skip
SILENT = (
    "print",
    "warn",
    "log",
    "logger",
    "logging",
    "debug",
    "info",
    "warning",
    "cast",
    "overload",
    "secho",
    "echo",
)
"""Calls by these names only tell or annotate: they are left alone."""
COMMUTATIVE = (
    *("max", "min", "np.maximum", "np.minimum", "suppress", "contextlib.suppress"),
    *("builder.add", "builder.mul", "builder.and_", "builder.or_", "builder.xor"),
)
"""Calls of these do the same whichever argument comes first."""


@dataclass(frozen=True, slots=True, order=True)
class Mutant:
    """One fault.

    Args:
        path: of the file, from the root of the repository.
        line: where it starts.
        start: first byte that is replaced.
        end: first byte after these.
        before: the text that is replaced.
        after: what replaces it.
        operator: kind of fault.
        function: qualified name of the innermost function it is in, "" on the level of a module or class.
    """

    path: str
    line: int
    start: int
    end: int
    before: str
    after: str
    operator: str
    function: str

    def planted(self, source: bytes) -> bytes:
        """Return the file with the fault in it."""
        return source[: self.start] + self.after.encode() + source[self.end :]

    def differs(self, source: bytes) -> bool:
        """Return whether the fault leaves a program, and another one."""
        try:
            return ast.dump(ast.parse(self.planted(source))) != ast.dump(ast.parse(source))
        except SyntaxError:
            return False


def mutants(path: str, source: bytes) -> list[Mutant]:
    """Return the mutants of a file, in order. Texts, messages of errors, annotations and logs are left alone.

    Args:
        path: of the file, for the mutants.
        source: its bytes.
    """
    lines = source.splitlines(keepends=True)
    begins = [0]
    for line in lines:
        begins.append(begins[-1] + len(line))
    found = set()
    for function, (operator, node, after) in _Walk().module(ast.parse(source)):
        start = begins[node.lineno - 1] + node.col_offset
        end = begins[node.end_lineno - 1] + node.end_col_offset
        before = source[start:end].decode()
        found.add(Mutant(path, node.lineno, start, end, before, after, operator, function))
    return sorted(found)


class _Walk:
    """Visits what may be changed, with the qualified name of the function it is in."""

    def module(self, tree: ast.Module) -> Iterator[tuple[str, Planted]]:
        yield from self._body(tree.body, "", "")

    def _body(self, body: list[ast.stmt], function: str, prefix: str) -> Iterator[tuple[str, Planted]]:
        for statement in body:
            yield from self._statement(statement, function, prefix)

    def _statement(self, node: ast.stmt, function: str, prefix: str) -> Iterator[tuple[str, Planted]]:
        if isinstance(node, Function):
            name = prefix + node.name
            for default in [*node.args.defaults, *filter(None, node.args.kw_defaults)]:
                yield from self._expressions(default, name)
            yield from self._body(node.body, name, f"{name}.<locals>.")
        elif isinstance(node, ast.ClassDef):
            yield from self._body(node.body, function, f"{prefix}{node.name}.")
        elif not _left_alone(node):
            yield from ((function, planted) for planted in _of_statement(node))
            for child in ast.iter_child_nodes(node):
                if child is not getattr(node, "annotation", None):
                    yield from self._part(child, function, prefix)

    def _part(self, node: ast.AST, function: str, prefix: str) -> Iterator[tuple[str, Planted]]:
        """What a statement holds: other statements, handlers, expressions."""
        if isinstance(node, ast.stmt):
            yield from self._statement(node, function, prefix)
        elif isinstance(node, (ast.ExceptHandler, ast.match_case)):
            yield from ((function, planted) for planted in _of_handler(node))
            yield from self._body(node.body, function, prefix)
        else:
            yield from self._expressions(node, function)

    def _expressions(self, node: ast.AST, function: str) -> Iterator[tuple[str, Planted]]:
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Call) and _name(node.func) in SILENT):
            return
        yield from ((function, planted) for planted in _of_expression(node))
        for child in ast.iter_child_nodes(node):
            yield from self._expressions(child, function)


def _left_alone(node: ast.stmt) -> bool:
    """Imports, docstrings, errors and their messages, assertions, types."""
    if isinstance(
        node, (ast.Import, ast.ImportFrom, ast.Raise, ast.Assert, ast.Pass, ast.Global, ast.Nonlocal)
    ):
        return True
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant) or (
            isinstance(node.value, ast.Call) and _name(node.value.func) in SILENT
        )
    if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
        return True
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        name = node.targets[0].id
        return name == "__all__" or (name[:1].isupper() and not name.isupper())  # an alias of a type
    return False


def _name(node: ast.expr) -> str:
    return ast.unparse(node).split("(")[0].split(".")[-1]


def _of_statement(node: ast.stmt) -> Iterator[Planted]:
    if isinstance(node, ast.Expr) and isinstance(node.value, (ast.Call, ast.Await)):
        yield "call dropped", node, "pass"
    elif isinstance(node, ast.AugAssign) or _stores(node):
        yield "assignment dropped", node, "pass"
    elif isinstance(node, (ast.Break, ast.Continue)):
        yield "loop", node, "continue" if isinstance(node, ast.Break) else "break"
    elif isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
        if isinstance(node.value, (ast.Compare, ast.BoolOp)):
            yield "return negated", node, f"return not ({ast.unparse(node.value)})"
        elif not isinstance(node.value, ast.Constant):
            yield "return dropped", node, "return None"
    elif isinstance(node, ast.Delete):
        yield "deletion dropped", node, "pass"
    if isinstance(node, (ast.If, ast.While)):
        yield _negated(node.test)


def _stores(node: ast.stmt) -> bool:
    """Whether it is an assignment to an attribute or an item: without one to a name, others would fail."""
    return isinstance(node, ast.Assign) and not isinstance(node.targets[0], (ast.Name, ast.Tuple))


def _of_handler(node: ast.ExceptHandler | ast.match_case) -> Iterator[Planted]:
    """An error that is caught is raised instead."""
    if isinstance(node, ast.ExceptHandler) and not isinstance(node.body[0], ast.Raise):
        yield "handler passes it on", node.body[0], "raise"


def _of_expression(node: ast.AST) -> Iterator[Planted]:
    if isinstance(node, (ast.Compare, ast.BoolOp, ast.BinOp)):
        yield from _of_operator(node)
    elif isinstance(node, ast.Constant):
        yield from _of_constant(node)
    elif isinstance(node, ast.IfExp):
        yield _negated(node.test)
    elif isinstance(node, ast.comprehension):
        yield from map(_negated, node.ifs)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        yield "negation dropped", node, f"({ast.unparse(node.operand)})"
    elif isinstance(node, ast.Slice):
        yield from _of_bounds([node.lower, node.upper])
    elif isinstance(node, ast.Call):
        yield from _of_call(node)


def _of_operator(node: ast.Compare | ast.BoolOp | ast.BinOp) -> Iterator[Planted]:
    changed: Any = copy.deepcopy(node)
    if isinstance(node, ast.Compare):
        for number, op in enumerate(node.ops):
            changed.ops = [*node.ops[:number], COMPARED[type(op)](), *node.ops[number + 1 :]]
            yield "comparison", node, f"({ast.unparse(changed)})"
    elif isinstance(node, ast.BoolOp):
        changed.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield "and/or", node, f"({ast.unparse(changed)})"
    elif type(node.op) in COMPUTED and not _of_texts_or_types(node):
        changed.op = COMPUTED[type(node.op)]()
        yield "arithmetic", node, f"({ast.unparse(changed)})"


def _of_bounds(bounds: Sequence[ast.expr | None]) -> Iterator[Planted]:
    for bound in bounds:
        if bound is not None and not isinstance(bound, ast.Constant):  # of which others take care
            for change in ("+ 1", "- 1"):
                yield "bound", bound, f"({ast.unparse(bound)}) {change}"


def _of_call(node: ast.Call) -> Iterator[Planted]:
    if _name(node.func) == "range":
        yield from _of_bounds(node.args[:2])
    if ast.unparse(node.func) in COMMUTATIVE:
        return
    for first, second in zip(node.args, node.args[1:], strict=False):
        if not any(isinstance(a, (ast.Starred, ast.GeneratorExp)) for a in (first, second)):
            changed = copy.deepcopy(node)
            number = node.args.index(first)
            changed.args[number], changed.args[number + 1] = second, first
            yield "arguments swapped", node, ast.unparse(changed)


def _of_constant(node: ast.Constant) -> Iterator[Planted]:
    if isinstance(node.value, bool):
        yield "constant", node, str(not node.value)
    elif isinstance(node.value, int):
        yield "constant", node, str(node.value + 1)
        if node.value > 0:
            yield "constant", node, str(node.value - 1)
    elif isinstance(node.value, float):
        yield "constant", node, repr(node.value * 2 if node.value else 1.0)


def _negated(test: ast.expr) -> Planted:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return "condition negated", test, f"({ast.unparse(test.operand)})"
    return "condition negated", test, f"(not ({ast.unparse(test)}))"


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _of_texts_or_types(node: ast.BinOp) -> bool:
    """Texts that are put together, and `X | None`."""
    for side in (node.left, node.right):
        if isinstance(side, ast.JoinedStr) or (
            isinstance(side, ast.Constant) and not isinstance(side.value, (int, float))
        ):
            return True
        if (
            isinstance(node.op, ast.BitOr)
            and isinstance(side, ast.Name)
            and side.id in ("int", "float", "str", "bytes")
        ):
            return True
    return False
