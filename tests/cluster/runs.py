"""A run with shards and workers as a user starts it, its processes, and what becomes of them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from tests.cli.command import SATRAP, Answer
from tests.launch.runs import RECIPE, make_recipe

PATIENCE = 300.0
"""Seconds: only what hangs takes longer, also on a machine that has much else to do."""

LONG = RECIPE.replace("epochs: 2", "epochs: 100000, patience: null")


ROLES = ("shard", "loader", "embedding-worker")


def children(pid: int) -> dict[str, int]:
    """Processes that a launcher has started, by their command: "shard 0", "loader 0", in order of start.

    They are its children, or those of its fork server. A process that is not yet, or no longer, what it was
    started for has another command and is left out.
    """
    found: dict[str, int] = {}
    counts = dict.fromkeys((*ROLES, "worker"), 0)
    for child in _children(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            words = Path(f"/proc/{child}/cmdline").read_bytes().decode().split("\0")
            if "satrap.launch.launchers.fork_server" in words:
                found |= children(child)
                continue
            kind = "worker" if "satrap.launch" in words else next(filter(words.__contains__, ROLES), None)
            if kind:
                found[f"{kind} {counts[kind]}"] = child
                counts[kind] += 1
    return found


def _children(pid: int) -> list[int]:
    """Its child processes, whichever of its threads has started them, in order of start."""
    lists = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return sorted(int(child) for text in lists for child in text.split())


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def eventually(condition: object, seconds: float = PATIENCE) -> bool:
    """Whether a condition becomes true in time."""
    assert callable(condition)
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        if condition():
            return True
        time.sleep(0.05)
    return bool(condition())


class Started:
    """A run under way, after its first evaluation; use it as a context."""

    def __init__(
        self,
        folder: Path,
        *settings: str,
        shards: int = 2,
        workers: int = 2,
        loaders: int = 0,
        middle: int = 0,
    ) -> None:
        recipe = make_recipe(folder, LONG)
        self.run = folder / "run"
        options = [
            "cluster.exchange=servers",
            "cluster.placement=row_wise",
            f"cluster.shards={shards}",
            f"cluster.workers={workers}",
            f"cluster.loaders={loaders}",
            f"cluster.embedding_workers={middle}",
            *settings,
        ]
        self.popen = subprocess.Popen(
            [SATRAP, "train", recipe, "--output", self.run, *(x for o in options for x in ("--set", o))],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.roles: dict[str, int] = {}
        history = self.run / "metrics.jsonl"
        begun = eventually(lambda: history.exists() or self.popen.poll() is not None, PATIENCE)
        if not begun or self.popen.poll() is not None:
            self.popen.kill()
            raise AssertionError(self.popen.communicate())
        self.roles = children(self.popen.pid)

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in (self.popen.pid, *self.roles.values()):
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
        self.popen.communicate()

    def answer(self) -> Answer:
        """How it ended."""
        out, err = self.popen.communicate(timeout=PATIENCE)
        return Answer(self.popen.returncode, out, err)

    def said(self) -> str:
        """End it, and return its exit code and what it printed: the message of a failed assertion."""
        code = self.popen.poll()
        self.popen.kill()
        return f"exit code {code}: {self.popen.communicate()}"

    def left(self) -> Sequence[str]:
        """Roles that still run, after the launcher has ended."""
        eventually(lambda: not any(map(alive, self.roles.values())))
        return [name for name, pid in self.roles.items() if alive(pid)]
