"""Plant faults drawn at random, one at a time, and say which ones no test notices: `make mutants`.

A survivor is one of three things. A missing test: write it. Code that does nothing: delete it. Or an
*equivalent* mutant, a program that does the same for every caller: then it goes into `equivalent.toml`, with
the reason. "Slower", "only the text of an error" and "a limit that is one larger" may be reasons. "Hard to
test" is none.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from queue import SimpleQueue

from tools_dev.mutants.operators import Mutant, mutants
from tools_dev.mutants.survey import MARKS, Choice, survey

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / ".mutants"
REVIEWED = Path(__file__).with_name("equivalent.toml")
COMPILES = 300.0
"""Seconds more for a mutant: its tests may have to compile all kernels anew."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mutant: "killed", "SURVIVED", or "unseen" if no test runs its function."""

    mutant: Mutant
    what: str
    by: str
    seconds: float


def draw(sources: Mapping[str, bytes], count: int, seed: int) -> list[Mutant]:
    """Return mutants of as many lines. Each line has the same chance, then each kind of fault on it."""
    lines: dict[tuple[str, int], list[Mutant]] = defaultdict(list)
    for path, source in sources.items():
        for mutant in mutants(path, source):
            lines[path, mutant.line].append(mutant)
    rng, drawn = random.Random(seed), list[Mutant]()
    for line in rng.sample(sorted(lines), len(lines)):
        operator = rng.choice(sorted({mutant.operator for mutant in lines[line]}))
        mutant = rng.choice([mutant for mutant in lines[line] if mutant.operator == operator])
        if len(drawn) < count and mutant.differs(sources[mutant.path]):
            drawn.append(mutant)
    return drawn


def equivalent(mutant: Mutant, text: str) -> str:
    """Return the reason why nobody can notice this mutant, "" if none is known."""
    for entry in tomllib.loads(REVIEWED.read_text(encoding="utf-8")).get("equivalent", []):
        after = entry["after"] if isinstance(entry["after"], list) else [entry["after"]]
        if (entry["file"], entry["line"]) == (mutant.path, text) and mutant.after in after:
            return str(entry["reason"])
    return ""


def copy_tree(target: Path) -> None:
    """Make a folder equal to the work tree; equal files keep their times, and so their machine code."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    output = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True).stdout
    names = {Path(name) for name in output.decode().split("\0") if name and (ROOT / name).is_file()}
    for old in [path for path in target.rglob("*.py") if path.relative_to(target) not in names]:
        old.unlink()
    for name in names:
        source, copied = ROOT / name, target / name
        copied.parent.mkdir(parents=True, exist_ok=True)
        if not copied.exists() or copied.read_bytes() != source.read_bytes():
            shutil.copy2(source, copied)


@cache
def isolation() -> list[str]:
    """Return a command prefix for a private network namespace; empty where the system allows none."""
    kind = "-n" if os.geteuid() == 0 else "-rn"
    prefix = ["unshare", kind, "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    if shutil.which("unshare") is None:
        return []
    works = subprocess.run([*prefix, "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0
    return prefix if works else []


def check_isolation() -> None:
    """Refuse mutants of root without a namespace.

    One whose `ioctl` reads an address may set flags instead, and take down every interface of the machine.
    The system itself keeps other users from that.
    """
    if os.geteuid() == 0 and not isolation():
        raise SystemExit("mutants of root need a network namespace: allow one, or use another user")


class Slot:
    """A private copy of the tree in which one mutant at a time lives.

    Args:
        folder: of the copy.
        marks: which tests it runs, as pytest's `-m` takes it.
    """

    def __init__(self, folder: Path, *, marks: str = MARKS) -> None:
        self.folder, self._marks = folder, marks
        copy_tree(folder)

    def run(self, mutant: Mutant, tests: Sequence[str], limit: float) -> str:
        """Return the first test that fails with the mutant, "time-out", or "" if none does."""
        path = self.folder / mutant.path
        source, stat = path.read_bytes(), path.stat()
        with tempfile.TemporaryDirectory() as machine_code:
            kernels = "/kernels/" in mutant.path
            cache = machine_code if kernels else str(self.folder / ".numba")
            path.write_bytes(mutant.planted(source))
            try:
                return self._pytest(tests, limit, {"NUMBA_CACHE_DIR": cache})
            finally:
                path.write_bytes(source)
                os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    def _pytest(self, tests: Sequence[str], limit: float, environment: dict[str, str]) -> str:
        options = ["-x", "-q", "-p", "no:cacheprovider", "--timeout", "180", "-m", self._marks]
        options += ["-o", "addopts="]
        code = {
            "PYTHONPATH": f"{self.folder / 'src'}{os.pathsep}{self.folder}",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        with (self.folder / "pytest.log").open("w+b") as log:
            process = subprocess.Popen(
                [*isolation(), sys.executable, "-m", "pytest", *options, "--tb=no", "-rfE", *tests],
                cwd=self.folder,
                env=os.environ | code | environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                result = process.wait(limit)
            except subprocess.TimeoutExpired:
                return "time-out"
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # with all that a broken test has left running
                process.wait()
            log.seek(0)
            lines = log.read().decode(errors="replace").splitlines()
        if result == 0:
            return ""
        named = [line for line in lines if line.startswith(("FAILED ", "ERROR "))]
        return named[0].split(" - ")[0].split(" ", 1)[1] if named else f"exit code {result}: {lines[-1:]}"


def judge(slot: Slot, mutant: Mutant, choice: Choice, budgets: Sequence[float]) -> Verdict:
    """Run a mutant's tests: as many as take each budget, in turn, until one of them kills it."""
    start, tried = time.monotonic(), list[str]()
    for budget in budgets:
        tests = [test for test in choice.tests(mutant, budget=budget) if test not in tried]
        tried += tests
        if killer := _killer(slot, mutant, tests, COMPILES + 5 * choice.seconds(tests)):
            return Verdict(mutant, "killed", killer, time.monotonic() - start)
    what, by = ("SURVIVED", f"{len(tried)} tests") if tried else ("unseen", "no test runs it")
    return Verdict(mutant, what, by, time.monotonic() - start)


def _killer(slot: Slot, mutant: Mutant, tests: list[str], limit: float) -> str:
    """Return the first test that fails twice with the mutant, "" if none does: a shaky test kills nothing."""
    while tests:
        failed = slot.run(mutant, tests, limit)
        if not failed or failed not in tests or slot.run(mutant, [failed], limit):
            return failed
        tests = tests[tests.index(failed) + 1 :]
    return ""


def told(verdict: Verdict) -> str:
    """Return a verdict as text."""
    m = verdict.mutant
    change = f"{' '.join(m.before.split())}  ->  {m.after}"
    return (
        f"{verdict.what:9}{m.path}:{m.line}  {m.operator}: {change}  [{verdict.by}, {verdict.seconds:.0f} s]"
    )


def main() -> int:
    """Draw, plant, run and tell."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=100, help="mutants to draw (default: %(default)s)")
    parser.add_argument(
        "--seed", type=int, default=random.randrange(10**6), help="default: another each time"
    )
    parser.add_argument("--jobs", type=int, default=2, help="at the same time (default: %(default)s)")
    parser.add_argument(
        "--budget", type=float, default=90, help="seconds of tests per mutant (default: %(default)s)"
    )
    parser.add_argument(
        "--last",
        type=float,
        default=600,
        help="seconds for a mutant that survives these (default: %(default)s)",
    )
    parser.add_argument(
        "--marks", default=MARKS, help="tests that may see a mutant, for pytest's -m (default: %(default)s)"
    )
    parser.add_argument("--only", default="src/satrap/", help="files whose path begins so")
    parser.add_argument("--list", action="store_true", help="print the sample and stop")
    arguments = parser.parse_args()
    files = sorted(p.relative_to(ROOT).as_posix() for p in (ROOT / "src" / "satrap").rglob("*.py"))
    files = [path for path in files if path.startswith(arguments.only)]
    sources = {path: (ROOT / path).read_bytes() for path in files}
    known, sample = [], []
    for mutant in draw(sources, arguments.count, arguments.seed):
        line = sources[mutant.path].decode().splitlines()[mutant.line - 1].strip()
        reason = equivalent(mutant, line)
        (known if reason else sample).append(mutant)
        if reason or arguments.list:
            print(told(Verdict(mutant, "equal" if reason else "drawn", reason, 0)))
    print(f"seed {arguments.seed}: {len(sample)} mutants of {len(files)} files to judge", flush=True)
    if arguments.list:
        return 0
    check_isolation()
    slots: SimpleQueue[Slot] = SimpleQueue()
    for number in range(arguments.jobs):
        slots.put(Slot(KEPT / str(number), marks=arguments.marks))
    first = KEPT / "0"
    choice = Choice(first, survey(first, KEPT / "survey.json", marks=arguments.marks, jobs=arguments.jobs))

    def one(mutant: Mutant) -> Verdict:
        slot = slots.get()
        try:
            verdict = judge(slot, mutant, choice, (arguments.budget, arguments.last))
        finally:
            slots.put(slot)
        print(told(verdict), flush=True)
        return verdict

    with ThreadPoolExecutor(arguments.jobs) as pool:
        verdicts = list(pool.map(one, sample))
    left = [verdict for verdict in verdicts if verdict.what != "killed"]
    killed = len(verdicts) - len(left)
    print(f"\nseed {arguments.seed}: {killed} of {len(verdicts)} killed, {len(known)} known to be equivalent")
    print("\n".join(map(told, left)))
    return 1 if len(left) > 0.05 * len(verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
