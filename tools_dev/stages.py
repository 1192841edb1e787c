"""`python3 tools_dev/stages.py ci` (or `all`): what a change must pass, stage by stage, with budgets.

`ci` is what `.ci/run` does: it ends at the first failure. `all` is `make test-all`: every test that needs no
GPU and no network, with all examples of property tests. It goes on after a failure, and names the slowest.
Only the standard library is used: on a fresh clone nothing is installed yet.
"""

from __future__ import annotations

import os
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

SLOW_OF_TOOLS = "-m pytest --durations 5 -m 'slow and not cluster' tests/cli tests/launch tests/tune"


@dataclass(frozen=True)
class Stage:
    """A command, and the minutes it may take on two quiet cores, without installing anything."""

    command: str
    minutes: float
    tools: bool = False  # only when one of the tools, or what it imports itself, has changed


CI = (
    Stage("make golden", 2),
    Stage("make test", 12),
    Stage("make check", 1),
    Stage("make docs", 1),
    Stage("make test-cluster", 26),
    Stage("make test-chaos", 10),
    Stage("make test-tools", 9, tools=True),
    Stage(f".venv/bin/python {SLOW_OF_TOOLS}", 5),
)
ALL = (
    *(Stage(one.command, one.minutes) for one in CI[:-1]),
    Stage("make test-slow", 45),
    Stage("make test-dense", 30),
)

TOOLS = ("deploy", "doctor", "init", "plan", "prepare", "report", "tune")
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
    said = (
        f"== {stage.command}: {minutes:.1f} min of {stage.minutes:g}, machine at {1 / pace:.0%} of its pace"
    )
    if thorough or minutes <= 1.5 * stage.minutes or pace > 4 / 3:
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
    """Whether tools, their tests or what they import differ from the main branch; True if unknown."""
    ask = ["git", "merge-base", "HEAD", "origin/main"]
    base = subprocess.run(ask, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout
    if not base or base == head.strip():
        return True
    names = subprocess.run(
        ["git", "diff", "--name-only", base], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    return any(_concerns_tools(name) for name in names)


def _concerns_tools(name: str) -> bool:
    parts = Path(name).parts
    own = parts[:2] == ("src", "satrap") and parts[2:3] and parts[2] in TOOLS
    tests = parts[:1] == ("tests",) and any(tool in part for part in parts for tool in TOOLS)
    return bool(
        own or tests or parts[0] in ("tools_dev", "pyproject.toml", "Makefile") or name in _imported()
    )


def _imported() -> set[str]:
    """Return the files of satrap that modules of the tools import, by their names."""
    found = set()
    for tool in TOOLS:
        for path in (ROOT / "src" / "satrap" / tool).rglob("*.py"):
            for line in path.read_text(encoding="utf-8").splitlines():
                words = line.split()
                if words[:1] in (["from"], ["import"]) and words[1].startswith("satrap."):
                    module = "src/" + words[1].replace(".", "/")
                    found |= {f"{module}.py", f"{module}/__init__.py"}
    return found


def _slowest(reports: Iterable[Path], count: int = 30) -> list[str]:
    tests = [test for report in reports for test in ElementTree.parse(report).iter("testcase")]
    tests.sort(key=lambda test: -float(test.get("time", 0)))
    return [f"{float(t.get('time', 0)):6.1f}  {t.get('classname')}::{t.get('name')}" for t in tests[:count]]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if sys.argv[1:] else "ci"))
