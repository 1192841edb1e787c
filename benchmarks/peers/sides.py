"""Starts the processes of a side, its shard servers among them, and lets them take turns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.machines import Machines

import satrap
from benchmarks.peers.environments import python_of
from benchmarks.processes import free_port, processor_seconds
from benchmarks.turns import Process, ask, line

ROOT = Path(__file__).resolve().parents[2]
SERVE = """import sys, torch.distributed as d
s = d.TCPStore("127.0.0.1", int(sys.argv[1]), None, True, wait_for_workers=False)
print("ready", flush=True)
sys.stdin.read()"""


@dataclass(frozen=True, slots=True)
class Turn:
    """Times of one turn.

    Args:
        cpu_ms: processor time of a step, of all processes together.
        wall_ms: wall time of a step, of the slowest rank.
        report: what rank 0 reports of itself.
    """

    cpu_ms: float
    wall_ms: float
    report: dict[str, Any]


class Running:
    """The processes of a side.

    Args:
        ranks: processes that train, each ready.
        shards: shard servers.
    """

    def __init__(self, ranks: Sequence[Process], shards: Sequence[Process]) -> None:
        self._ranks, self._shards = ranks, shards

    def turn(self, steps: int) -> Turn:
        """Train some steps on new samples."""
        before = self._served()
        answers = [json.loads(answer) for answer in ask(self._ranks, steps)]
        cpu = sum(a["cpu_ms"] for a in answers) + 1e3 * (self._served() - before) / steps
        return Turn(cpu, max(a["wall_ms"] for a in answers), answers[0]["report"])

    def _served(self) -> float:
        return sum(processor_seconds(shard.pid) for shard in self._shards)


@contextmanager
def running(options: dict[str, Any]) -> Iterator[Running]:
    """Run a side until the context ends; it has warmed up.

    Args:
        options: `side`, and what it reads; `world` ranks, `rate` of each one's network, "" for the loopback.

    Raises:
        PeerMissingError: the side's packages cannot be installed here.
    """
    python, world = python_of(options["side"]), options["world"]
    with ExitStack() as stack:
        machines = stack.enter_context(Machines(world, options["rate"]))
        servers = world if options["side"].startswith("servers") else 0
        command = [sys.executable, "-m", "satrap.cli", "shard", "--listen", "127.0.0.1:0"]
        shards = [_started(stack, command) for _ in range(servers)]
        store = f"{machines.master}:{free_port()}"
        if "torchrec" not in options["side"]:  # there, rank 0 serves the store
            serve = [*machines.command(0), sys.executable, "-c", SERVE, store.partition(":")[2]]
            line(_started(stack, serve))
        common = options | {"store": store, "shards": [line(shard).split()[4] for shard in shards]}
        ranks = []
        for rank in range(world):
            own = json.dumps(common | {"rank": rank, "host": machines.addresses[rank]})
            command = [*machines.command(rank), python, "-m", "benchmarks.peers.rank"]
            ranks.append(_started(stack, command, RANK_OPTIONS=own))
        for process in ranks:
            line(process)
        yield Running(ranks, shards)


def _started(stack: ExitStack, command: list[str], **environment: str) -> Process:
    """Start a program that ends with the stack."""
    path = os.pathsep.join([str(Path(satrap.__file__).parents[1]), str(ROOT)])
    process = subprocess.Popen(
        command,
        env=os.environ | {"PYTHONPATH": path} | environment,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def end() -> None:
        process.terminate()
        process.wait(20)

    stack.callback(end)
    return process
