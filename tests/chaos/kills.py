"""The kill loop: processes of training runs are killed again and again, at random instants and inside saves.

`python -m tests.chaos.kills --kills 200 --seed 1` draws configurations in which every legal pair of settings
occurs (`drawing.py`), kills in each of them (`process_kills.py`, `cluster_kills.py`), checks what is left
(`oracle.py`) and prints a table. What fails is kept, with the command that repeats it.
"""

from __future__ import annotations

import argparse
import itertools
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.cluster_kills import ClusterRun
from tests.chaos.drawing import (
    BATCH,
    EVERY,
    TRAINED,
    Configuration,
    draw,
    epochs,
    legal_pairs,
    pairs,
    write_recipe,
)
from tests.chaos.oracle import Looked, Oracle
from tests.chaos.process_kills import ProcessRun


@dataclass
class Verdict:
    """What was done to the runs of one configuration, and found."""

    number: int
    configuration: Configuration
    kills: dict[str, int] = field(default_factory=dict)
    inside: int = 0
    looked: Looked = field(default_factory=Looked)
    exact: bool = False
    error: str = ""
    seconds: float = 0.0


def walk(number: int, configuration: Configuration, place: Path, *, seed: int, kills: int) -> Verdict:
    """Kill runs of one configuration so often, and let the last one end; keep the folder if something fails.

    Args:
        number: of the configuration.
        configuration: of the runs.
        place: an empty folder, removed if all is well.
        seed: of what is killed and when.
        kills: how many.
    """
    verdict, begun = Verdict(number, configuration), time.monotonic()
    source = random.Random(f"{seed} {number}")
    steps = epochs(configuration) * TRAINED // BATCH // int(configuration["workers"])
    killer = ClusterRun(source, steps) if configuration["shards"] else ProcessRun(source)
    verdict.kills = killer.kills
    try:
        recipe = write_recipe(place / "reference", configuration, every=EVERY, keep=10**6)
        assert killer.attempt(recipe, place / "reference" / "run", False, 0)
        oracle = Oracle(configuration, place / "reference" / "run")
        verdict.looked, verdict.exact = oracle.looked, oracle.exact
        for run in itertools.count():
            recipe = write_recipe(place / f"run-{run}", configuration)
            _to_its_end(oracle, killer, recipe, kills)
            if sum(killer.kills.values()) >= kills:
                break
        shutil.rmtree(place)
    except Exception:  # noqa: BLE001 - whatever one configuration brings to light, the others are still tried
        again = f"python -m tests.chaos.kills --seed {seed} --configuration {number} --kills {kills}"
        verdict.error = f"{traceback.format_exc()}kept in {place}; again: {again}"
    verdict.inside, verdict.seconds = killer.inside, time.monotonic() - begun
    return verdict


def _to_its_end(oracle: Oracle, killer: ClusterRun | ProcessRun, recipe: Path, kills: int) -> None:
    """Train one run to its end, however often it is killed on the way."""
    run, newest = recipe.parent / "run", None
    ended = False
    while not ended:
        if newest is None:
            shutil.rmtree(run, ignore_errors=True)
        ended = killer.attempt(recipe, run, newest is not None, kills - sum(killer.kills.values()))
        newest = oracle.snapshots(run, newest)
    oracle.end(run)
    shutil.rmtree(recipe.parent)


def loop(
    kills: int, *, seed: int, jobs: int = 1, only: str | None = None, numbers: Sequence[int] | None = None
) -> list[Verdict]:
    """Walk through the configurations that a seed draws.

    Args:
        kills: in all, spread evenly.
        seed: of everything random.
        jobs: configurations at a time.
        only: "process" or "cluster": those without or with servers.
        numbers: of configurations; default all.
    """
    chosen = [
        (number, configuration)
        for number, configuration in enumerate(draw(seed))
        if (numbers is None or number in numbers)
        and (only is None or (only == "cluster") == bool(configuration["shards"]))
    ]
    place = Path(tempfile.mkdtemp(prefix="satrap-kills-"))
    shares = [kills // len(chosen) + (i < kills % len(chosen)) for i in range(len(chosen))]
    with ThreadPoolExecutor(jobs) as pool:
        walks = [
            pool.submit(walk, number, configuration, place / str(number), seed=seed, kills=share)
            for (number, configuration), share in zip(chosen, shares, strict=True)
        ]
        verdicts = []
        for one in as_completed(walks):
            verdicts.append(one.result())
            print(line(verdicts[-1]), flush=True)
            if verdicts[-1].error:
                print(verdicts[-1].error, file=sys.stderr, flush=True)
    if not any(place.iterdir()):
        place.rmdir()
    return verdicts


def line(verdict: Verdict) -> str:
    """Return a row of the table: configuration, kills, inside saves, snapshots, ended runs, verdict."""
    c, looked = verdict.configuration, verdict.looked
    words = [
        f"{c['mode']} {c['durability']}",
        "deltas" if c["deltas"] == "yes" else "",
        "tier" if c["tier"] == "yes" else "",
        f"{c['eviction']}" if c["eviction"] != "none" else "",
        f"admission by {c['admission']}" if c["admission"] != "none" else "",
        f"{c['rows']}",
        "one process" if c["shards"] == 0 else f"{c['shards']} shards {c['workers']} workers",
        f"lookahead {c['lookahead']}" if c["lookahead"] else "",
        f"{c['loaders']} loaders" if c["loaders"] else "",
        f"{c['embedding_workers']} embedding workers" if c["embedding_workers"] else "",
    ]
    killed = ", ".join(f"{count} {kind}" for kind, count in sorted(verdict.kills.items()))
    state = "FAILED" if verdict.error else "to the bit" if verdict.exact else "invariants hold"
    return (
        f"| {verdict.number} | {', '.join(filter(None, words))} | {killed} | {verdict.inside} "
        f"| {looked.snapshots} | {looked.compared} | {looked.chains} | {looked.finished} "
        f"| {verdict.seconds:.0f} | {state} |"
    )


HEAD = (
    "| | configuration | kills | inside saves | snapshots read | compared with another run | deltas compared "
    "with a full one | runs ended | seconds | verdict |\n" + "| --- " * 10 + "|"
)


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill processes of training runs and check what they left.")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--only", choices=["process", "cluster"], default=None)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--configuration", type=int, action="append", default=None)
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
    print(f"seed {seed}\n{HEAD}", flush=True)
    verdicts = loop(given.kills, seed=seed, jobs=given.jobs, only=given.only, numbers=given.configuration)
    covered = {pair for verdict in verdicts for pair in pairs(verdict.configuration)}
    total = sum(sum(verdict.kills.values()) for verdict in verdicts)
    failed = sum(bool(verdict.error) for verdict in verdicts)
    print(
        f"\n{total} kills, {sum(v.inside for v in verdicts)} inside saves, {len(verdicts)} configurations, "
        f"{len(covered)} of {len(legal_pairs())} legal pairs, {failed} failed"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
