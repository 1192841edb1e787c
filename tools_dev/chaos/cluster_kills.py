"""A run with shards and workers, of whose processes one is killed again and again.

Workers and shards that are killed come back by themselves, three loaders a run, too. A launcher or embedding
worker that is killed ends the run, which then goes on by `--resume`.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from pathlib import Path

from tests.cli.command import SATRAP
from tests.cluster.runs import alive, children

from satrap.config import load
from satrap.launch.cluster.supervisor import LOADER_RESTARTS
from satrap.launch.folder.resume import complete
from satrap.launch.folder.run_folder import RunFolder
from tools_dev.chaos.process_kills import WAIT, tail

LEFT_SECONDS = 60.0
"""In which the processes of a run end after their launcher was killed, also on a busy machine."""

FATAL = ("launcher", "embedding-worker")


class ClusterRun:
    """Starts a run with servers and kills what belongs to it.

    Args:
        source: of what is random.
        steps: of the run, about.

    Attributes:
        kills: by what was killed.
        inside: how many of these were inside a save.
    """

    def __init__(self, source: random.Random, steps: int) -> None:
        self._random, self._steps = source, steps
        self.kills: dict[str, int] = {}
        self.inside = 0

    def attempt(self, recipe: Path, run: Path, resume: bool, kills: int) -> bool:
        """Start the run or go on with it, and kill until it ends; return whether it got to its end.

        Args:
            recipe, run, resume: of the run.
            kills: how many, at most.
        """
        process, killed = start(recipe, run, resume), [""]
        roles: dict[str, int] = {}
        while kills >= len(killed) and killed[-1] not in FATAL:
            inside = self._wait_for_an_instant(process, run)
            roles = _children(process.pid) or roles
            if process.poll() is not None:
                break
            name = self._victim(roles, killed)
            with contextlib.suppress(ProcessLookupError):
                os.kill({**roles, "launcher": process.pid}[name], signal.SIGKILL)
                killed.append(name.rsplit(" ", 1)[0])
                self.kills[killed[-1]] = self.kills.get(killed[-1], 0) + 1
                self.inside += inside
            if self._random.random() < 0.2:
                break  # this time let it get to the end
        code = process.wait(WAIT)
        self._none_left(roles)
        fatal = killed[-1] in FATAL
        assert code == 0 or (fatal and code in (1, -signal.SIGKILL)), (
            f"the run failed by itself: exit code {code} after kills of {killed[1:]}\n{tail(run)}"
        )
        assert code != 1 or "embedding worker" in tail(run), f"another error:\n{tail(run)}"
        # A launcher may be killed when all is written, before it ends by itself.
        return code == 0 or complete(load(recipe), RunFolder(run))

    def _victim(self, roles: dict[str, int], killed: list[str]) -> str:
        """Choose a kind of process, then one of them: few shards are as likely as many workers."""
        kinds = {name.rsplit(" ", 1)[0] for name in roles} | {"launcher"}
        if killed.count("loader") >= LOADER_RESTARTS:
            kinds.discard("loader")
        kind = self._random.choice(sorted(kinds))
        return self._random.choice([n for n in sorted(roles) if n.rsplit(" ", 1)[0] == kind] or [kind])

    def _wait_for_an_instant(self, process: subprocess.Popen[bytes], run: Path) -> bool:
        """Return some steps from now, or as soon as a save is under way after that; whether it is the latter.

        One time in six it is at any time, as while the processes start.
        """
        if self._random.random() < 1 / 6:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(self._random.uniform(0.0, 10.0))
            return False
        until = newest(run) + self._random.randint(0, self._steps // 3)
        limit = time.monotonic() + WAIT
        while newest(run) < until and process.poll() is None and time.monotonic() < limit:
            time.sleep(0.005)
        inside = self._random.random() < 0.6
        late = time.monotonic() + (30.0 if inside else self._random.uniform(0.0, 0.5))
        while time.monotonic() < late and process.poll() is None:
            if inside and saving(run):
                time.sleep(self._random.uniform(0.0, 0.01))
                return True
            time.sleep(0.001)
        return False

    @staticmethod
    def _none_left(roles: dict[str, int]) -> None:
        limit = time.monotonic() + LEFT_SECONDS
        while left := [name for name, pid in roles.items() if alive(pid)]:
            assert time.monotonic() < limit, f"processes are left: {left}"
            time.sleep(0.02)


def start(recipe: Path, run: Path, resume: bool) -> subprocess.Popen[bytes]:
    command = [SATRAP, "train", recipe, "--output", run, *(["--resume"] if resume else [])]
    with run.with_suffix(".log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)


def _children(pid: int) -> dict[str, int]:
    try:
        return children(pid)
    except (FileNotFoundError, ProcessLookupError):
        return {}


def newest(run: Path) -> int:
    """Return the step of the newest snapshot that is complete, 0 without."""
    found = (run / "checkpoints").glob("step-*/manifest.json")
    return max((int(path.parent.name[5:]) for path in found), default=0)


def saving(run: Path) -> bool:
    """Whether a snapshot has begun to be written and is not complete."""
    try:
        steps = list((run / "checkpoints").glob("step-*"))
        return any(not (step / "manifest.json").exists() and any(step.iterdir()) for step in steps)
    except OSError:
        return False
