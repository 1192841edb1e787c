"""`python3 tools_dev/stages.py ci` (or `all`): what a change must pass, stage by stage, with budgets.

`ci` is what `.ci/run` does: it ends at the first failure. `all` is `make test-all`: every test that needs no
GPU and no network, with all examples of property tests. It goes on after a failure, and names the slowest.
Only the standard library is used: on a fresh clone nothing is installed yet.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]

QUIET_SECONDS = 0.65
"""Seconds of `_seconds()` on a quiet machine; one that takes a third more is not judged by its times."""


@dataclass(frozen=True)
class Stage:
    """A command, and the minutes it may take on two quiet cores."""

    command: str
    minutes: float | None  # none for one that installs packages, which is as slow as the network
    tools: bool = False  # only when one of the tools, or what it imports, has changed


CI = (
    Stage("make setup docs servers", None),
    Stage("make golden", 4),  # it comes first, so it compiles the kernels: 1.5 without that
    Stage("make test", 6),
    Stage("make check", 1),
    Stage("make test-cluster", 21),
    Stage("make test-chaos", 8),
    Stage("make test-triton", None),
    Stage("make test-tools", 7, tools=True),
)
ALL = (
    *(Stage(one.command, one.minutes) for one in CI),
    Stage("make test-slow", 45),
    Stage("make test-dense", 30),
)

TOOLS = ("tools", "plan", "report")
"""Packages of satrap around training; their tests are `make test-tools`."""


def main(which: str) -> int:
    stages = ALL if which == "all" else CI
    failed, lines = [], []
    with tempfile.TemporaryDirectory() as folder:
        for number, stage in enumerate(stages):
            if stage.tools and not _changed():
                print(f"\n== {stage.command}: left out, nothing that it tests has changed", flush=True)
                continue
            print(f"\n== {stage.command}", flush=True)
            line, code = _run(stage, Path(folder) / f"{number}.xml", thorough=which == "all")
            lines.append(line)
            print(line, flush=True)
            failed += [stage.command] * (code != 0)
            if failed and which != "all":
                return 1
        if which == "all":
            print("\nthe slowest tests, seconds:")
            print(*_slowest(Path(folder).glob("*.xml")), sep="\n")
    print("\n" + "\n".join(lines))
    print("failed: " + ", ".join(failed) if failed else "all passed")
    return int(bool(failed))


def _run(stage: Stage, report: Path, *, thorough: bool) -> tuple[str, int]:
    """Return what to say of a stage, and its exit code, or 1 if it took far too long on a quiet machine."""
    before = _seconds()
    more = {"PYTEST_ADDOPTS": f"--junitxml={report}"} | ({"TESTS": "thorough"} if thorough else {})
    start = time.monotonic()
    code = subprocess.run(
        stage.command, shell=True, cwd=ROOT, env={**os.environ, **more}, check=False
    ).returncode
    minutes = (time.monotonic() - start) / 60
    pace = max(before, _seconds()) / QUIET_SECONDS
    budget = f" of {stage.minutes:g}" if stage.minutes else ""
    said = f"== {stage.command}: {minutes:.1f} min{budget}, machine at {1 / pace:.0%} of its pace"
    if thorough or not stage.minutes or minutes <= 1.5 * stage.minutes or pace > 4 / 3:
        return said, code
    return f"{said}: too long for a quiet machine", code or 1


def _seconds() -> float:
    """Return how long fixed work takes on two cores at once."""
    work = [sys.executable, "-c", "sum(i * i for i in range(5_000_000))"]
    start = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: subprocess.run(work, check=True), range(2)))
    return time.monotonic() - start


def _changed() -> bool:
    """Whether tools, what they import or their tests differ from the main branch; True if unknown."""
    base, head = _git("merge-base", "HEAD", "origin/main"), _git("rev-parse", "HEAD")
    if not base or base == head:
        return True
    imports = {f"src/satrap/{name}" for tool in TOOLS for name in (tool, *_imported(tool))}
    concerned = re.compile(
        "|".join([*imports, "tests/.*(" + "|".join(TOOLS) + ")", "tools_dev", "pyproject", "Makefile"])
    )
    return any(concerned.match(name) for name in _git("diff", "--name-only", base).splitlines())


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()


def _imported(tool: str) -> list[str]:
    """Return the names of modules and folders of satrap that a tool imports."""
    texts = (path.read_text(encoding="utf-8") for path in (ROOT / "src" / "satrap" / tool).rglob("*.py"))
    return [
        name for text in texts for name in re.findall(r"(?:from|import) satrap(?:\.| import )(\w+)", text)
    ]


def _slowest(reports: Iterable[Path], count: int = 30) -> list[str]:
    tests = [test for report in reports for test in ElementTree.parse(report).iter("testcase")]
    tests.sort(key=lambda test: -float(test.get("time", 0)))
    return [f"{float(t.get('time', 0)):6.1f}  {t.get('classname')}::{t.get('name')}" for t in tests[:count]]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if sys.argv[1:] else "ci"))
