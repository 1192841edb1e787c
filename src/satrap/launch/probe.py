"""Short real runs that are measured: processor time of each thread and shard, bytes, and speed."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist

from satrap.batch import Batch
from satrap.config import load
from satrap.embedding import EmbeddingPlan
from satrap.errors import ConfigError, ExchangeError
from satrap.launch.build import Site, make_trainer
from satrap.launch.datasets import measured, open_part
from satrap.launch.worker import Assignment, connect, end_with_launcher
from satrap.plan.simulate.measured import Measured
from satrap.schema import Schema
from satrap.train import Observer, Progress, Trainer

EDGE = 12
"""Steps at both ends of the second pass that are not measured."""
COUNTED = 8
"""Batches whose distinct ids are counted."""
SCHEDSTAT = Path("/proc/self/schedstat")
ROLES = {"MainThread": "main", "satrap-prefetch": "reader", "satrap-client": "exchange"}
"""Threads by name; names that begin with satrap-exchange are those of the exchange, too."""


@dataclass(frozen=True, slots=True)
class Task:
    """What a measured worker is told, as one line of JSON; `shards` are process ids."""

    recipe: str
    overrides: Sequence[str]
    steps: int
    assignment: Mapping[str, Any]
    shards: Sequence[int]


def probe(
    recipe: str | Path, overrides: Sequence[str], steps: int, *, way: Callable[[str], str] = lambda to: to
) -> Measured:
    """Train some steps with the processes of a recipe, and return what they cost once rows are there.

    The first pass makes the rows and warms up; `steps` of a second pass over the same batches are measured.

    Args:
        recipe: what is trained.
        overrides: KEY=VALUE.
        steps: to measure.
        way: given HOST:PORT of a shard, returns the address at which workers are to reach it.

    Raises:
        ConfigError: the machine does not tell the processor time of threads, or the recipe is wrong.
        ExchangeError: a process ended early; its own words are on standard error.
    """
    if not SCHEDSTAT.exists():
        raise ConfigError(
            "this system does not tell the processor time of threads",
            why=f"{SCHEDSTAT} is missing",
            fix="calibrate on Linux, or use the file of another machine",
        )
    loaded = load(recipe, overrides)
    cluster, schema = loaded.sections.cluster, measured(loaded, loaded.schema())
    with ExitStack() as stack:
        servers = [
            _start(stack, "satrap.cli", "shard", "--listen", "127.0.0.1:0", "--stop-at-eof")
            for _ in range(cluster.servers)
        ]
        addresses = tuple(way(_line(server).split()[4]) for server in servers)
        store = _c10d.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
        meeting = f"127.0.0.1:{store.port}" if cluster.workers > 1 else ""
        own = Assignment("", schema.to_dict(), 0, cluster.workers, meeting, addresses, run=uuid.uuid4().hex)
        workers = [_start(stack, "satrap.launch.probe") for _ in range(cluster.workers)]
        for rank, worker in enumerate(workers):
            assignment = asdict(replace(own, rank=rank))
            task = Task(str(recipe), list(overrides), steps, assignment, [server.pid for server in servers])
            assert worker.stdin is not None
            worker.stdin.write(json.dumps(asdict(task)) + "\n")
            worker.stdin.flush()
        return Measured.mean([Measured(**json.loads(_line(worker))) for worker in workers])


_c10d: Any = dist
"""Parts of `torch.distributed` that its type annotations leave out."""


def _start(stack: ExitStack, module: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", module, *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    stack.enter_context(process)
    stack.callback(process.kill)
    return process


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise ExchangeError("a process that was measured has ended", fix="its own words are above")
    return line


# -- in the worker


class _Repeated:
    """The first batches of a data set, the same in each pass; of fewer, some again."""

    def __init__(self, data: Any, count: int) -> None:
        self._data, self._count = data, count

    def batches(self, epoch: int = 0, position: Any = None) -> Iterator[Batch]:
        """Yield full batches."""
        passes = (self._data.batches(0) for _ in itertools.count())
        full = (batch for one in passes for batch in one if batch.size == self._data.batch_size)
        return itertools.islice(full, self._count)


class _Window(Observer):
    """Takes what the kernel and the exchange have counted, at two steps."""

    def __init__(self, trainer: Trainer, start: int, stop: int, shards: Sequence[int]) -> None:
        self._trainer, self._at, self._shards = trainer, (start, stop), shards
        self.seen: list[dict[str, float]] = []
        self.times: list[float] = []

    def step(self, progress: Progress) -> None:
        """See `Observer.step`."""
        if self._at[0] <= progress.step <= self._at[1]:
            self.times.append(time.perf_counter())
        if progress.step in self._at:
            traffic = self._trainer.exchange.telemetry.traffic()
            self.seen.append(
                {
                    "seconds": time.perf_counter(),
                    "waited": progress.lookup_wait_seconds,
                    "busy": _machine(),
                    "sent": traffic.sent,
                    "received": traffic.received,
                    "shards": sum(_cpu(Path(f"/proc/{pid}/task").iterdir()) for pid in self._shards),
                    **_threads(),
                }
            )


def _threads() -> dict[str, float]:
    """Return the processor seconds of this process by role, see `measured.PIECES`."""
    names = {str(thread.native_id): thread.name for thread in threading.enumerate()}
    found = dict.fromkeys(("reader", "main", "exchange", "other"), 0.0)
    for task in Path("/proc/self/task").iterdir():
        name = names.get(task.name, "")
        role = "exchange" if name.startswith("satrap-exchange") else ROLES.get(name, "other")
        found[role] += _cpu([task])
    return found


def _cpu(tasks: Iterable[Path]) -> float:
    """Return the processor seconds of threads, without those that have ended."""
    nanoseconds = 0
    for task in tasks:
        with suppress(FileNotFoundError, ProcessLookupError):
            nanoseconds += int((task / "schedstat").read_text().split()[0])
    return nanoseconds / 1e9


def _machine() -> float:
    user, nice, system, _, _, irq, soft, *_ = map(
        int, Path("/proc/stat").read_text().split("\n")[0].split()[1:]
    )
    return (user + nice + system + irq + soft) / os.sysconf("SC_CLK_TCK")


def work(task: Task) -> Measured:
    """Train two passes; return what the middle of the second has cost."""
    recipe, told = load(task.recipe, task.overrides), dict(task.assignment)
    told["shards"] = tuple(told["shards"])
    assignment, passes = Assignment(**told), task.steps + 2 * EDGE
    schema, sections = Schema.from_dict(assignment.schema), recipe.sections
    site = Site() if sections.cluster.exchange == "local" else connect(recipe, assignment)
    share = site.workers.data
    data = open_part(recipe, schema, "train", worker=share.rank, workers=share.size)
    with closing(make_trainer(recipe, schema, site)) as trainer:
        window = _Window(trainer, passes + EDGE, passes + EDGE + task.steps, task.shards)
        batches = _Repeated(data, passes)
        trainer.fit(batches, epochs=2, observers=[window])
        rows, values = _distinct(schema, trainer, itertools.islice(batches.batches(), COUNTED))
        dense = sum(4.0 * p.numel() for p in trainer.model.parameters())
    before, after = window.seen
    used = {name: (after[name] - before[name]) / task.steps for name in before}
    used["busy"] /= used["seconds"]
    site.workers.close()
    low, middle, high = np.percentile(np.diff(window.times), (16, 50, 84))
    return Measured(
        spread=float((high - low) / 2 / middle),
        workers=share.size,
        holders={"local": 0, "servers": len(task.shards), "collective": share.size}[
            sections.cluster.exchange
        ],
        samples=sections.data.batch_size,
        rows=rows,
        values=values,
        dense=dense,
        **used,
    )


def _distinct(schema: Schema, trainer: Trainer, batches: Iterable[Batch]) -> tuple[float, float]:
    """Return the mean number of distinct ids of a batch, and of the numbers in their rows."""
    groups = trainer.exchange.groups
    plan, found = EmbeddingPlan(schema, groups), []
    for batch in batches:
        requests = plan.ticket(batch).requests
        found.append([(len(r.ids), len(r.ids) * groups[r.group].dim) for r in requests])
    rows, values = np.array(found).sum(1).mean(0)
    return float(rows), float(values)


def main() -> None:
    """Read a task, do it, and print what it has cost."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed is no answer
    task = Task(**json.loads(sys.stdin.readline()))
    threading.Thread(target=end_with_launcher, daemon=True).start()
    print(json.dumps(asdict(work(task))), file=out, flush=True)


if __name__ == "__main__":
    main()
