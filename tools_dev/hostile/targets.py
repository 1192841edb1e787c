"""The processes under attack, as a user starts them, and what becomes of them."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cli.command import SATRAP
from tests.cluster.runs import alive
from tests.launch.runs import RECIPE, make_recipe

from satrap.optim import Adagrad
from satrap.rpc import create_key
from satrap.schema import Categorical, Schema, Table

OPTIMIZER = Adagrad(lr=0.1)
TABLES = [
    Table("mine", dim=4, optimizer=OPTIMIZER, initial_scale=0.0),
    Table("theirs", dim=8, optimizer=OPTIMIZER, initial_scale=0.0),
]
"""Of the honest client, and of attackers whose messages are right: a group each. New rows are zeros."""

SEED, WORLD, RUN = 5, 32, "honest"
SCHEMA = Schema(labels=[], features={"mine": Categorical(dim=4), "theirs": Categorical(dim=8)})
LOG_BYTES = 256 << 10
"""What a process may print, however long it is attacked."""


@dataclass
class Target:
    """One process under attack.

    Args:
        name: of it, for example "journal".
        role: "shard", "loader" or "embedding-worker".
        popen: the process.
        address, metrics: HOST:PORT where it listens.
        log: what it prints.
    """

    name: str
    role: str
    popen: subprocess.Popen[bytes]
    address: str
    metrics: str
    log: Path
    start: int = 0
    peak: int = 0

    def look(self) -> None:
        """Take note of its memory."""
        with contextlib.suppress(OSError, StopIteration):
            lines = Path(f"/proc/{self.popen.pid}/status").read_text().splitlines()
            kib = next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
            self.peak = max(self.peak, kib << 10)

    def warm(self) -> None:
        """Count memory from here."""
        self.peak = 0
        self.look()
        self.start = self.peak

    def faults(self) -> list[str]:
        """Return what it may not do and did."""
        found = []
        if not alive(self.popen.pid) or self.popen.poll() is not None:
            found.append(f"ended with exit code {self.popen.poll()}: {self.said()}")
        if self.peak > 2 * self.start:
            found.append(f"memory grew from {self.start >> 20} to {self.peak >> 20} MiB")
        if (size := self.log.stat().st_size) > LOG_BYTES:
            found.append(f"printed {size >> 10} KiB: {self.said()}")
        return found

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")[-400:]


@contextmanager
def targets(folder: Path, *, key: Path | None) -> Iterator[dict[str, Target]]:
    """Start a shard, one with a journal, a loader, an embedding worker, and the shard behind this."""
    if key is not None:
        create_key(key)
    recipe = make_recipe(folder / "recipe", RECIPE)
    started: dict[str, Target] = {}

    def add(name: str, *command: object) -> str:
        started[name] = _start(name, command, folder, key)
        return started[name].address

    try:
        add("shard", "shard")
        add("journal", "shard", "--journal", folder / "journal")
        add("loader", "loader", recipe)
        add("embedding worker", "embedding-worker", "--shards", add("behind", "shard"))
        yield started
    finally:
        for target in started.values():
            target.popen.kill()
            target.popen.wait()


def _start(name: str, command: Sequence[object], folder: Path, key: Path | None) -> Target:
    log = folder / f"{name}.log"
    options = ["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", *(["--key", key] if key else [])]
    with log.open("wb") as out:
        popen = subprocess.Popen([SATRAP, *map(str, [*command, *options])], stdout=out, stderr=out)
    limit = time.monotonic() + 120
    while " ready on " not in (said := log.read_text(encoding="utf-8")):
        if popen.poll() is not None or time.monotonic() > limit:
            popen.kill()
            raise AssertionError(f"{name} did not start: {said}")
        time.sleep(0.1)
    address = said.split(" ready on ")[1].split()[0]
    metrics = said.split("metrics on http://")[1].split("/")[0]
    return Target(name, str(command[0]), popen, address, metrics, log)
