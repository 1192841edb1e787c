"""Start-up time of the roles of a run, and the cost of their supervision. See README.md here."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.launch.runs import RECIPE, frame, make_recipe

from benchmarks.record import write
from benchmarks.roles.processes import KINDS, Process, below, frozen, seconds

OVERSEERS = ("driver", "agent", "ray")
MOST_SECONDS = 600.0
"""Seconds after which a start is abandoned."""

ENDLESS = RECIPE.replace("epochs: 2", "epochs: 100000, patience: null")
STORE = 80 << 20
"""Bytes of a Ray node's object store."""


@contextmanager
def ray_cluster(nodes: int) -> Iterator[str]:
    """Start a Ray cluster of some nodes on this machine; yield its address."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    system = {"worker_niceness": 0, "worker_oom_score_adjustment": 0}
    first = {"num_cpus": 1, "_system_config": system, "include_dashboard": False}
    cluster = Cluster(True, head_node_args={"object_store_memory": STORE, **first})
    try:
        for _ in range(nodes - 1):
            cluster.add_node(num_cpus=1, object_store_memory=STORE)
        yield cluster.address
    finally:
        cluster.shutdown()


class Run:
    """A run with one worker, one loader and shards. Use it as a context.

    Args:
        folder: a new folder.
        roles: number of roles.
        settings: settings of the recipe.
    """

    def __init__(self, folder: Path, roles: int, settings: list[str]) -> None:
        self.roles, self._folder = roles, folder
        recipe = make_recipe(folder, ENDLESS, frame(20_000))
        shards = ["cluster.exchange=servers", f"cluster.shards={roles - 2}", "cluster.loaders=1"]
        settings = [*shards, "cluster.metrics_port=0", "cluster.deadline=300", *settings]
        self._notes = folder / "notes.jsonl"
        words = [recipe, folder / "run", self._notes, *settings]
        self.began = time.monotonic()
        with (folder / "log").open("w") as log:
            self._driver = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.roles.driver", *map(str, words)], stdout=log, stderr=log
            )

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self._driver.kill()
        self._driver.wait()
        limit = time.monotonic() + 60
        while any(process.sort in KINDS for process in self.processes()) and time.monotonic() < limit:
            time.sleep(0.2)

    def notes(self) -> list[tuple[float, str, str, str]]:
        """Return the driver's records: time, event, role, a value."""
        text = self._notes.read_text() if self._notes.exists() else ""
        return [tuple(json.loads(line)) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def wait(self, what: str, count: int) -> None:
        """Wait until an event was recorded for some roles; raise `RuntimeError` if the run ends before."""
        limit = time.monotonic() + MOST_SECONDS
        while len({name for _, noted, name, _ in self.notes() if noted == what}) < count:
            if self._driver.poll() is not None or time.monotonic() > limit:
                raise RuntimeError((self._folder / "log").read_text()[-2000:])
            time.sleep(0.05)

    def processes(self) -> list[Process]:
        """Return all processes of the run and of Ray."""
        return below(self._driver.pid)

    def overseers(self) -> list[Process]:
        """Return the processes that are not shards, loaders or workers."""
        return [process for process in self.processes() if process.sort in OVERSEERS]

    def steps(self) -> int:
        """Return the number of steps, as reported by the worker."""
        address = next(v for _, what, name, v in self.notes() if what == "MetricsServed" and "worker" in name)
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        return int(
            float(next(one for one in lines if one.startswith("satrap_worker_steps_total")).split()[1])
        )


def start_up(run: Run) -> dict[str, Any]:
    """Wait for the first step; return elapsed and processor seconds, by parts."""
    run.wait("Ready", run.roles - 1)
    ready = run.processes()
    run.wait("Stepped", 1)
    stepped = run.processes()
    at: dict[tuple[str, str], float] = {}
    for when, what, name, _ in run.notes():
        at.setdefault((what, name), when)
    servers = [name for what, name in at if what == "Ready"]
    roles = [name for what, name in at if what == "Launched"]
    starts = [at["Launched", name] - at["asked", name] for name in roles]
    readies = [at["Ready", name] - at["Launched", name] for name in servers]
    first = at["Stepped", "worker 0"]
    connected = at.get(("connected", ""), at["reserved", ""])
    return {
        "roles": run.roles,
        "seconds": {
            "all_roles_run": max(at["Launched", name] for name in roles) - run.began,
            "first_step": first - run.began,
            "driver_imports": at["launcher", ""] - run.began,
            "connect": connected - at["launcher", ""],
            "placement": at["reserved", ""] - connected,
            "start_of_a_role": spread(starts),
            "ready_of_a_server": spread(readies),
            "worker_to_first_step": first - at["Launched", "worker 0"],
        },
        "cpu_seconds_per_role": {
            "servers_until_ready": per(ready, "shard"),
            "shard_until_first_step": per(stepped, "shard"),
            "worker_until_first_step": per(stepped, "worker"),
            "agent_until_first_step": per(stepped, "agent"),
            "driver_until_first_step": seconds(stepped, "driver"),
            "ray_until_first_step": seconds(stepped, "ray") / run.roles,
        },
        "mib": memory(stepped),
        "load": os.getloadavg()[0],
    }


def spread(values: list[float]) -> dict[str, float]:
    """Return median and largest."""
    return {"median": statistics.median(values), "largest": max(values)}


def per(processes: list[Process], sort: str) -> float:
    """Return the average processor seconds of the processes of a kind; 0 if there are none."""
    return seconds(processes, sort) / max(1, sum(process.sort == sort for process in processes))


def memory(processes: list[Process]) -> dict[str, float]:
    """Return the average MiB of a process of each kind, and the total."""
    mib: dict[str, list[float]] = {}
    for process in processes:
        try:
            mib.setdefault(process.sort, []).append(process.memory)
        except OSError:
            continue  # it has just ended
    means = {sort: statistics.mean(sizes) for sort, sizes in mib.items()}
    return {**means, "all": sum(map(sum, mib.values()))}


def oversight(run: Run, windows: int, length: float) -> dict[str, Any]:
    """Return the cost of supervision during training; supervisors run and pause in alternating windows."""
    watched, held, cpu = list[float](), list[float](), dict.fromkeys(OVERSEERS, 0.0)
    steps = 0
    for _ in range(windows):
        before = run.overseers()
        took, count = pace(run, length)
        after = run.overseers()
        watched.append(took)
        steps += count
        for sort in OVERSEERS:
            cpu[sort] += seconds(after, sort) - seconds(before, sort)
        with frozen(run.overseers()):
            held.append(pace(run, length)[0])
        time.sleep(1.0)  # for work that has accumulated
    return {
        "windows": windows,
        "window_s": length,
        "steps": steps,
        "step_ms": {"watched": watched, "held": held},
        "step_ms_median": {"watched": statistics.median(watched), "held": statistics.median(held)},
        "cpu_ms_per_step": {sort: 1e3 * spent / steps for sort, spent in cpu.items()},
        "cpu_share_of_a_core": {sort: spent / (windows * length) for sort, spent in cpu.items()},
    }


def pace(run: Run, length: float) -> tuple[float, int]:
    """Return the milliseconds of a step, and the number of steps, within some seconds."""
    first, began = run.steps(), time.monotonic()
    time.sleep(length)
    count, took = run.steps() - first, time.monotonic() - began
    return 1e3 * took / count, count


def main() -> None:
    """Print and record each measurement."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.roles", description=__doc__)
    parser.add_argument("--roles", type=int, nargs="+", default=[10, 20, 50])
    parser.add_argument("--launchers", nargs="+", default=["local", "ray"], choices=["local", "ray"])
    parser.add_argument("--nodes", type=int, default=2, help="of the Ray cluster")
    parser.add_argument(
        "--windows", type=int, default=5, help="with and without supervision; 0: start-up only"
    )
    parser.add_argument("--length", type=float, default=4.0, help="seconds of a window")
    parser.add_argument("--write", action="store_true", help="write the raw result as JSON next to this file")
    options = parser.parse_args()
    results, path = [], None
    for roles in options.roles:
        for launcher in options.launchers:
            with tempfile.TemporaryDirectory() as folder:
                figures = {"launcher": launcher, **measure(Path(folder), roles, launcher, options)}
            results.append(figures)
            print(json.dumps(figures), flush=True)
            if options.write:
                path = write(Path(__file__).parent / "results", vars(options), {"runs": results}, path)


def measure(folder: Path, roles: int, launcher: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measure one run."""
    if launcher == "ray":
        with ray_cluster(options.nodes) as address:
            little = [f"cluster.resources.{kind}.cpu=0.01" for kind in KINDS]
            settings = ["cluster.launcher=ray", f"cluster.address={address}", *little]
            return measured(Run(folder, roles, settings), options)
    return measured(Run(folder, roles, []), options)


def measured(run: Run, options: argparse.Namespace) -> dict[str, Any]:
    """Return start-up and supervision of a run, and end it."""
    with run:
        figures = start_up(run)
        return (
            figures
            if not options.windows
            else {**figures, "oversight": oversight(run, options.windows, options.length)}
        )


if __name__ == "__main__":
    main()
