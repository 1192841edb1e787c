"""Runs that are asked for other shards and workers while they train."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pandas as pd

from tests.cli.command import SATRAP, satrap
from tests.cluster.runs import children, eventually
from tests.launch.runs import RECIPE, make_recipe

SYNC = RECIPE.replace("hybrid, staleness: 2, staleness_warmup: 0, epochs: 2", "sync, epochs: 60")
SETTINGS = ["cluster.exchange=servers", "cluster.shards=2", "cluster.workers=2", "training.patience=null"]


class Run:
    """A run of a fixed number of steps; `sets` are settings beside `base`, `variables` its environment."""

    def __init__(
        self,
        folder: Path,
        *sets: str,
        resume: bool = False,
        base: Sequence[str] = SETTINGS,
        text: str = SYNC,
        rows: pd.DataFrame | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder / "run"
        options = [part for each in [*base, *sets] for part in ("--set", each)]
        command = [SATRAP, "train", make_recipe(folder, text, rows), "--output", self.folder, *options]
        command += ["--resume"] if resume else []
        self.log = folder / "log"
        with self.log.open("w") as log:
            self.popen = subprocess.Popen(command, stdout=log, stderr=log, env=variables)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.popen.kill()
        self.popen.wait()

    def training(self) -> bool:
        history = self.folder / "metrics.jsonl"
        return eventually(lambda: history.exists() or self.popen.poll() is not None)

    @contextmanager
    def standing(self) -> Iterator[None]:
        """Stop the workers for a while: then a run need not be long to be still at it afterwards."""
        workers = [pid for name, pid in children(self.popen.pid).items() if name.startswith("worker")]
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in workers:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def ask(self, *words: object) -> subprocess.Popen[str]:
        """Start `satrap shards ...` for this run; its workers stand until there is an order for them."""
        command, *arguments = map(str, words)
        line = [SATRAP, "shards", command, self.folder, *arguments, "--json"]
        with self.standing():
            asked = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            order = self.folder / "requests" / "order.json"
            assert eventually(lambda: order.exists() or asked.poll() is not None), self.log.read_text()
        return asked

    def shards(self, *words: object) -> dict[str, Any]:
        """Return what `satrap shards ...` answers; ask again if workers have to start again meanwhile."""
        for _ in range(20):
            asked = self.ask(*words)
            out, err = asked.communicate()
            if "not all rows were moved: all workers restart" not in err:
                assert asked.returncode == 0, err
                found: dict[str, Any] = json.loads(out)
                return found
            time.sleep(0.5)
        raise AssertionError(err)

    def ended(self) -> None:
        assert self.popen.wait(300) == 0, self.log.read_text()


def targets(run: Run) -> list[str]:
    """What Prometheus is told to follow."""
    listed = json.loads((run.folder / "targets.json").read_text())
    return sorted(one["labels"]["instance"] for one in listed)


TEXT = RECIPE.replace("hybrid, staleness: 2, staleness_warmup: 0, epochs: 2", "sync, epochs: 3")
ALIKE = ["data.global_batch=true", "training.patience=null"]
SERVERS = ["cluster.exchange=servers", "cluster.shards=2", "cluster.workers=1"]
WIRE = ["cluster.wire.forward=float32", "cluster.wire.backward=float32"]


def asked(run: Run, number: int) -> dict[str, Any]:
    """Ask for another number of workers, as soon as the run takes requests; return the answer."""
    lock = run.folder / "requests" / "lock"
    assert eventually(lambda: run.popen.poll() is not None or lock.exists()), run.log.read_text()
    answer = satrap("workers", run.folder, number, "--json")
    assert answer.code == 0, answer.err + run.log.read_text()
    found: dict[str, Any] = json.loads(answer.out)
    return found
