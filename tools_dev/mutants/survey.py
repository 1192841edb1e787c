"""Which tests run which function, found by running them once."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools_dev.mutants.operators import Function, Mutant

MARKS = "not slow and not chaos and not gpu"
READ_SOURCE = "tests/house/test_defaults.py"
"""Tests that call nothing, and yet see what numbers stand in the source."""
TRACED = Path(__file__).parent / "traced"


@dataclass(frozen=True, slots=True)
class Survey:
    """What a run of the suite showed.

    Args:
        seconds: of each test that passed.
        callers: "path function" -> the tests that call it, in any process they start.
    """

    seconds: dict[str, float]
    callers: dict[str, list[str]]


def survey(root: Path, kept: Path, *, marks: str = MARKS, jobs: int) -> Survey:
    """Return the survey of a tree; it is read from a file if there is one.

    Args:
        root: of the repository.
        kept: the file.
        marks: which tests count, as pytest's `-m` takes it.
        jobs: processes to run the suite in.
    """
    if not kept.exists():
        with tempfile.TemporaryDirectory() as folder:
            path = os.pathsep.join([str(TRACED), str(root / "src"), str(root)])
            environment = os.environ | {"SATRAP_SURVEY": folder, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
            environment["NUMBA_CACHE_DIR"] = str(root / ".numba")
            command = [sys.executable, "-m", "pytest", "-p", "tools_dev.mutants.plugin", "-m", marks]
            options = ["-n", str(jobs), "--timeout", "600", "-o", "addopts=-q --dist worksteal"]
            subprocess.run([*command, *options], cwd=root, env=environment, check=False)
            found = _collected(Path(folder))
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps({"seconds": found.seconds, "callers": found.callers}), encoding="utf-8")
    read = json.loads(kept.read_text(encoding="utf-8"))
    there = collected(root, marks)
    print(f"{len(there - read['seconds'].keys())} tests are not in {kept}; remove it to take a new survey")
    return Survey(
        {test: seconds for test, seconds in read["seconds"].items() if test in there},
        {function: [t for t in tests if t in there] for function, tests in read["callers"].items()},
    )


def collected(root: Path, marks: str = MARKS) -> set[str]:
    """Return the tests of a tree that have these marks."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", marks, "-o", "addopts="]
    path = os.pathsep.join([str(root / "src"), str(root)])
    done = subprocess.run(
        command,
        cwd=root,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    return {line for line in done.stdout.splitlines() if "::" in line}


def _collected(folder: Path) -> Survey:
    seconds: dict[str, float] = {}
    failed: set[str] = set()
    callers: dict[str, set[str]] = defaultdict(set)
    for file in folder.iterdir():
        for line in file.read_text(encoding="utf-8").splitlines():
            kind, test, *rest = line.split("\t")
            if kind == "call":
                callers[" ".join(rest)].add(test)
            elif kind == "passed":
                seconds[test] = float(rest[0])
            else:
                failed.add(test)
    passed = seconds.keys() - failed
    return Survey(
        {test: seconds[test] for test in sorted(passed)},
        {function: sorted(tests & passed) for function, tests in sorted(callers.items())},
    )


class Choice:
    """Chooses the tests that should see a mutant.

    Args:
        root: of the repository.
        found: which test calls what.
    """

    def __init__(self, root: Path, found: Survey) -> None:
        self._root, self._found = root, found
        self._names = _names(root)

    def tests(self, mutant: Mutant, *, budget: float) -> list[str]:
        """Return tests, the likeliest to see it first.

        The order is: the file that mirrors the module, quick tests in files that import it, other quick ones,
        then slow tests in the same order.

        Args:
            mutant: in a function, or on the level of its module: then all tests that use the module count.
            budget: seconds that the tests took in the survey, together. The tests of the mirroring file are
                returned whatever they took, and at least one test is.
        """
        module = mutant.path.removeprefix("src/").removesuffix(".py")
        mirrored = f"tests/{Path(module).parent.relative_to('satrap') / ('test_' + Path(module).name)}.py"
        imported = module.replace("/", ".")
        texts: dict[str, str] = {}

        def rank(test: str) -> tuple[bool, bool, bool, str, float]:
            file, seconds = test.split("::")[0], self._found.seconds[test]
            if file not in texts:
                texts[file] = (self._root / file).read_text(encoding="utf-8")
            return file != mirrored, seconds > 1, imported not in texts[file], file, seconds

        chosen, used = [], 0.0
        files = {mirrored, *([READ_SOURCE] if mutant.operator == "constant" else [])}
        own = {test for test in self._found.seconds if test.split("::")[0] in files}
        for test in sorted(own | self._calling(mutant), key=rank):
            if test in own or not chosen or used + self._found.seconds[test] <= budget:
                chosen.append(test)
                used += self._found.seconds[test]
        return chosen

    def seconds(self, tests: Sequence[str]) -> float:
        """Return how long tests took in the survey."""
        return sum(self._found.seconds[test] for test in tests)

    def _calling(self, mutant: Mutant) -> set[str]:
        """Tests that call the function; of one that is compiled, those that call what names it.

        Where a chain of names ends, and on the level of a module, those that call what uses the module.
        """
        callers = self._found.callers
        wanted, seen = {f"{mutant.path} {mutant.function}"}, set[str]()
        while wanted and mutant.function:
            if tests := {test for key in wanted for test in callers.get(key, ())}:
                return tests
            seen |= wanted
            wanted = self._using(wanted) - seen
        own = {key for key in (*callers, *self._names) if key.startswith(f"{mutant.path} ")}
        return {test for key in own | self._using(own) for test in callers.get(key, ())}

    def _using(self, keys: set[str]) -> set[str]:
        """Functions that name one of these, or the function one of these is in."""
        short = {name.split(".")[-1] for key in keys for name in key.split(" ")[1].split(".<locals>.")} - {""}
        return {key for key, names in self._names.items() if names & short}


def _names(root: Path) -> dict[str, set[str]]:
    """Return the names that each function uses, by "path function"."""
    found: dict[str, set[str]] = {}
    for file in sorted((root / "src" / "satrap").rglob("*.py")):
        path = file.relative_to(root).as_posix()
        _uses(ast.parse(file.read_text(encoding="utf-8")), f"{path} ", "", found)
    return found


def _uses(node: ast.AST, key: str, prefix: str, found: dict[str, set[str]]) -> None:
    """Add what a node uses to `found[key]`, and the functions in it."""
    path = key.split(" ")[0]
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            _uses(child, f"{path} {prefix}{child.name}", f"{prefix}{child.name}.<locals>.", found)
        elif isinstance(child, ast.ClassDef):
            _uses(child, key, f"{prefix}{child.name}.", found)
        elif isinstance(child, (ast.Assign, ast.AnnAssign)) and key == f"{path} " and child.value:
            targets = child.targets if isinstance(child, ast.Assign) else [child.target]
            for target in targets:  # `step = by_width(_make)`: what uses `step` uses `_make`
                _uses(child.value, f"{path} {ast.unparse(target)}", prefix, found)
        else:
            if isinstance(child, (ast.Name, ast.Attribute)):
                name = child.id if isinstance(child, ast.Name) else child.attr
                found.setdefault(key, set()).add(name)
            _uses(child, key, prefix, found)
