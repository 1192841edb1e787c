"""The kill loop: processes of training runs are killed again and again, at random instants and inside saves.

`python -m tools_dev.chaos.kills --kills 200 --seed 1` draws configurations in which every legal pair of
settings occurs (`drawing.py`), kills in each of them (`process_kills.py`, `cluster_kills.py`), checks what is
left (`oracle.py`) and prints a table. What fails is kept, with the command that repeats it.

With `--changes`, other processes go on each time a launcher is killed: other numbers of shards and workers,
other tables at all workers (`changes.py`). What is left is checked table by table (`tables.py`).
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
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from tests.support import forked

from tools_dev.chaos.changes import Changes
from tools_dev.chaos.cluster_kills import ClusterRun
from tools_dev.chaos.drawing import (
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
from tools_dev.chaos.oracle import Looked, Oracle
from tools_dev.chaos.process_kills import ProcessRun
from tools_dev.chaos.tables import TablesOracle


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
    layouts: int = 0


def walk(
    number: int, configuration: Configuration, place: Path, *, seed: int, kills: int, changes: bool = False
) -> Verdict:
    """Kill runs of one configuration so often, and let the last one end; keep the folder if something fails.

    Args:
        number: of the configuration.
        configuration: of the runs.
        place: an empty folder, removed if all is well.
        seed: of what is killed and when.
        kills: how many.
        changes: other processes go on each time.
    """
    verdict, begun = Verdict(number, configuration), time.monotonic()
    source = random.Random(f"{seed} {number}")
    steps = epochs(configuration) * TRAINED // BATCH // int(configuration["workers"])
    killer = ClusterRun(source, steps) if changes or configuration["shards"] else ProcessRun(source)
    verdict.kills = killer.kills
    try:
        oracle: Oracle | TablesOracle = TablesOracle(configuration)
        if not changes:
            recipe = write_recipe(place / "reference", configuration, every=EVERY, keep=10**6)
            assert killer.attempt(recipe, place / "reference" / "run", False, 0)
            oracle = Oracle(configuration, place / "reference" / "run")
        verdict.looked, verdict.exact = oracle.looked, oracle.exact
        for run in itertools.count():
            if changes:
                drawn = Changes(configuration, source)
                _to_its_end(oracle, killer, drawn.write(place / f"run-{run}"), kills, drawn.again)
                verdict.layouts += len(drawn.layouts) - 1
            else:
                _to_its_end(oracle, killer, write_recipe(place / f"run-{run}", configuration), kills)
            if sum(killer.kills.values()) >= kills:
                break
        shutil.rmtree(place)
    except Exception:  # noqa: BLE001 - whatever one configuration brings to light, the others are still tried
        again = f"python -m tools_dev.chaos.kills --seed {seed} --configuration {number} --kills {kills}"
        again += " --changes" * changes
        verdict.error = f"{traceback.format_exc()}kept in {place}; again: {again}"
    verdict.inside, verdict.seconds = killer.inside, time.monotonic() - begun
    return verdict


def _to_its_end(
    oracle: Oracle | TablesOracle,
    killer: ClusterRun | ProcessRun,
    recipe: Path,
    kills: int,
    again: Callable[[Path], None] = lambda _: None,
) -> None:
    """Train one run to its end, however often it is killed; `again` is called before it goes on."""
    run, newest = recipe.parent / "run", None
    ended = False
    while not ended:
        if newest is None:
            shutil.rmtree(run, ignore_errors=True)
        else:
            again(recipe)
        ended = killer.attempt(recipe, run, newest is not None, kills - sum(killer.kills.values()))
        newest = oracle.snapshots(run, newest)
    oracle.end(run)
    shutil.rmtree(recipe.parent)


def loop(
    kills: int,
    *,
    seed: int,
    jobs: int = 1,
    only: str | None = None,
    numbers: Sequence[int] | None = None,
    changes: bool = False,
) -> list[Verdict]:
    """Walk through the configurations that a seed draws.

    Args:
        kills: in all, spread evenly.
        seed: of everything random.
        jobs: configurations at a time.
        only: "process" or "cluster": those without or with servers.
        numbers: of configurations; default all.
        changes: see `walk`; then a configuration says nothing of tiers.
    """
    chosen = [
        (number, configuration)
        for number, configuration in enumerate(draw(seed))
        if (number in numbers if numbers is not None else not (changes and configuration["tier"] == "yes"))
        and (only is None or (only == "cluster") == bool(configuration["shards"]))
    ]
    place = Path(tempfile.mkdtemp(prefix="satrap-kills-"))
    shares = [kills // len(chosen) + (i < kills % len(chosen)) for i in range(len(chosen))]
    with ThreadPoolExecutor(jobs) as pool:
        walks = [
            pool.submit(
                walk, number, configuration, place / str(number), seed=seed, kills=share, changes=changes
            )
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
        f"{verdict.layouts} times by other processes"
        if verdict.layouts
        else "one process"
        if c["shards"] == 0
        else f"{c['shards']} shards {c['workers']} workers",
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
    parser.add_argument("--changes", action="store_true", help="other processes go on after a kill")
    given = parser.parse_args()
    forked.install()
    seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
    print(f"seed {seed}\n{HEAD}", flush=True)
    verdicts = loop(
        given.kills,
        seed=seed,
        jobs=given.jobs,
        only=given.only,
        numbers=given.configuration,
        changes=given.changes,
    )
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
