"""Short measured runs: CPU time of each thread and shard, bytes, and speed."""

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
from satrap.launch.build import make_trainer
from satrap.launch.cluster.worker import Assignment, connect, end_with_launcher
from satrap.launch.datasets import measured, open_part
from satrap.schema import Schema
from satrap.tools.plan.simulate.measured import Measured
from satrap.train import Observer, Progress, Trainer, WorkerContext

EDGE = 12
"""Steps at both ends of the second epoch that are not measured."""
COUNTED = 8
"""Number of batches whose unique ids are counted."""
SCHEDSTAT = Path("/proc/self/schedstat")
ROLES = {"MainThread": "main", "satrap-prefetch": "reader", "satrap-client": "exchange"}
"""Thread name -> role; names that begin with satrap-exchange also belong to the exchange."""


@dataclass(frozen=True, slots=True)
class Task:
    """The task of a measured worker, as one line of JSON; `shards` are process ids."""

    recipe: str
    overrides: Sequence[str]
    steps: int
    assignment: Mapping[str, Any]
    shards: Sequence[int]


def probe(
    recipe: str | Path, overrides: Sequence[str], steps: int, *, way: Callable[[str], str] = lambda to: to
) -> Measured:
    """Train some steps with the processes of a recipe, and return their cost with existing rows.

    The first epoch creates the rows and warms up; `steps` of a second epoch over the same batches are
    measured.

    Args:
        recipe: the recipe to train.
        overrides: KEY=VALUE overrides.
        steps: number of measured steps.
        way: maps HOST:PORT of a shard to the address that workers use.

    Raises:
        ConfigError: the system does not report the CPU time of threads, or the recipe is wrong.
        ExchangeError: a process ended early; see its standard error.
    """
    if not SCHEDSTAT.exists():
        raise ConfigError(
            "this system does not report the CPU time of threads",
            why=f"{SCHEDSTAT} is missing",
            fix="calibrate on Linux, or use a calibration file of another machine",
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
        template = Assignment(
            "", schema.to_dict(), 0, cluster.workers, meeting, addresses, run=uuid.uuid4().hex
        )
        workers = [_start(stack, "satrap.tools.plan.probe") for _ in range(cluster.workers)]
        for rank, worker in enumerate(workers):
            assignment = asdict(replace(template, rank=rank))
            task = Task(str(recipe), list(overrides), steps, assignment, [server.pid for server in servers])
            assert worker.stdin is not None
            worker.stdin.write(json.dumps(asdict(task)) + "\n")
            worker.stdin.flush()
        return Measured.mean([Measured(**json.loads(_line(worker))) for worker in workers])


_c10d: Any = dist
"""`torch.distributed` without type checks, for parts without annotations."""


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
        raise ExchangeError("a measured process has ended", fix="see its output above")
    return line


# -- in the worker


class _Repeated:
    """The first full batches of a data set, equal in each epoch; a short data set is repeated."""

    def __init__(self, data: Any, count: int) -> None:
        self._data, self._count = data, count

    def batches(self, epoch: int = 0, position: Any = None) -> Iterator[Batch]:
        """Yield full batches."""
        epochs = (self._data.batches(0) for _ in itertools.count())
        full = (batch for batches in epochs for batch in batches if batch.size == self._data.batch_size)
        return itertools.islice(full, self._count)


class _Window(Observer):
    """Reads the counters of the kernel and of the exchange at two steps."""

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
    """Return the CPU seconds of this process by role, see `measured.PIECES`."""
    names = {str(thread.native_id): thread.name for thread in threading.enumerate()}
    seconds = dict.fromkeys(("reader", "main", "exchange", "other"), 0.0)
    for task in Path("/proc/self/task").iterdir():
        name = names.get(task.name, "")
        role = "exchange" if name.startswith("satrap-exchange") else ROLES.get(name, "other")
        seconds[role] += _cpu([task])
    return seconds


def _cpu(tasks: Iterable[Path]) -> float:
    """Return the CPU seconds of threads; ended threads do not count."""
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
    """Train two epochs; return the cost of the middle of the second."""
    recipe, values = load(task.recipe, task.overrides), dict(task.assignment)
    values["shards"] = tuple(values["shards"])
    assignment, count = Assignment(**values), task.steps + 2 * EDGE
    schema, sections = Schema.from_dict(assignment.schema), recipe.sections
    context = WorkerContext() if sections.cluster.exchange == "local" else connect(recipe, assignment)
    share = context.workers.data
    data = open_part(recipe, schema, "train", worker=share.rank, workers=share.size)
    with closing(make_trainer(recipe, schema, context)) as trainer:
        window = _Window(trainer, count + EDGE, count + EDGE + task.steps, task.shards)
        batches = _Repeated(data, count)
        trainer.fit(batches, epochs=2, observers=[window])
        unique_rows, unique_values = _distinct(schema, trainer, itertools.islice(batches.batches(), COUNTED))
        dense = sum(4.0 * p.numel() for p in trainer.model.parameters())
    before, after = window.seen
    used = {name: (after[name] - before[name]) / task.steps for name in before}
    used["busy"] /= used["seconds"]
    context.workers.close()
    low, middle, high = np.percentile(np.diff(window.times), (16, 50, 84))
    return Measured(
        spread=float((high - low) / 2 / middle),
        workers=share.size,
        holders={"local": 0, "servers": len(task.shards), "collective": share.size}[
            sections.cluster.exchange
        ],
        samples=sections.data.batch_size,
        rows=unique_rows,
        values=unique_values,
        dense=dense,
        **used,
    )


def _distinct(schema: Schema, trainer: Trainer, batches: Iterable[Batch]) -> tuple[float, float]:
    """Return the mean number of unique ids of a batch, and of numbers in their rows."""
    groups = trainer.exchange.groups
    plan, counts = EmbeddingPlan(schema, groups), []
    for batch in batches:
        requests = plan.ticket(batch).requests
        counts.append([(len(r.ids), len(r.ids) * groups[r.group].dim) for r in requests])
    rows, values = np.array(counts).sum(1).mean(0)
    return float(rows), float(values)


def main() -> None:
    """Read a task, run it, and print its cost."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # other output must not mix with the answer
    task = Task(**json.loads(sys.stdin.readline()))
    threading.Thread(target=end_with_launcher, daemon=True).start()
    print(json.dumps(asdict(work(task))), file=out, flush=True)


if __name__ == "__main__":
    main()
