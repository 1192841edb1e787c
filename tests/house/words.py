"""Count patterns of English that read as translated. `python -m tests.house.words` prints where they are.

A pattern counts in docstrings, comments and messages of the source, and in the pages for users. Some uses are
correct, so each pattern has a ceiling instead of a ban, see `test_words.py`.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from tests.house.measure import SOURCE, nodes

ROOT = SOURCE.parents[1]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"), *SOURCE.rglob("*.md"))

PATTERNS = {
    "a text that opens with What": r"\AWhat\b",
    "a clause with what": r"\b[Ww]hat (?:is|was|are|were|it|they|the|a|has|have|he|each|this|that|its)\b",
    "those of, that of, those that": r"\b(?:[Tt]hose|[Tt]hat) of\b|\b[Tt]hose (?:that|which|who)\b",
    "is no, are no": r"\b(?:is|are|was|were) no\b",
    "of which, Of several": r"\bof which\b|\bOf several\b|\bof whom\b",
    "so many, as many": r"\b(?:so|as) (?:many|much|often|long) (?!as\b)",
    "go on": r"\b(?:go|goes|going|went|gone) on\b",
    "anew": r"\banew\b",
    "beside": r"\bbeside\b",
    "in place of": r"\bin place of\b",
    "meanwhile": r"\b[Mm]eanwhile\b",
    "too after a comma": r", too\b",
    "machines that speak": (
        r"\b(?:tells?|told|says?|said|hears?|heard|meets?|take[sn]? leave|makes? way|council"
        r"|ask(?:s|ed)? (?:for|whether|of|about|each|it|all|every|the))\b"
    ),
    "nobody, whoever": r"\b(?:[Aa]nybody|[Nn]obody|[Ww]hoever|[Ss]omebody|[Nn]othing else|[Ee]verybody)\b",
    "pass for an epoch": r"\b(?:each|one|first|last|second|whole|this) pass\b",
}


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield texts with their lines: strings that have a space, and comments; of a page, all but code."""
    source = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield 1, re.sub(r"```.*?```", lambda block: "\n" * block[0].count("\n"), source, flags=re.DOTALL)
        return
    for node in nodes(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def places(paths: Iterable[Path]) -> Iterator[tuple[str, str]]:
    """Yield each use as (name of the pattern, place and context)."""
    for path in paths:
        for line, text in texts(path):
            for name, pattern in PATTERNS.items():
                for match in re.finditer(pattern, text):
                    near = text[max(0, match.start() - 40) : match.end() + 40]
                    place = f"{path.relative_to(ROOT)}:{line + text.count(chr(10), 0, match.start())}"
                    yield name, f"{place}: {near!r}"


@cache
def counted(paths: tuple[Path, ...]) -> Counter[str]:
    """Return the uses of each pattern."""
    return Counter(name for name, _ in places(paths))


if __name__ == "__main__":
    part = " ".join(sys.argv[1:])
    files = (*sorted(SOURCE.rglob("*.py")), *PAGES)
    for name, place in places(files):
        if part in name:
            print(f"{name}: {place}")
    print(counted(files))
