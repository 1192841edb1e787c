"""Real processes under attack, beside honest clients that check every row.

`python -m tools_dev.hostile --messages 10_000_000 --minutes 20` attacks a shard, a shard with a journal, a
loader, an embedding worker and the shard behind that, each with its metrics endpoint, one after another:
first without a key, then with one, by attackers without it, with a wrong one, and with the right one. It ends
with exit code 1 if an honest client saw a wrong row or waited too long, or if a process ended, grew or talked
too much.

They take turns because they share a machine here: five processes that are flooded at once would wait for
each other's processors, which they do not where each has its own.
"""

from __future__ import annotations

import argparse
import multiprocessing
import queue
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from satrap.rpc import create_key
from tools_dev.hostile.attacks import attack, attack_endpoint
from tools_dev.hostile.honest import Experience, live
from tools_dev.hostile.targets import Target, targets

P99 = 0.25
"""Seconds that 99 of 100 requests of an honest client may take at most."""

CLIENTS = {"embedding worker": ("embedding worker", "behind"), "metrics endpoint": ("shard",)}
"""Name of an honest client -> processes in whose turns its time counts; others use the one of their name."""

START_SECONDS = 300.0
"""In which the honest clients get to work, also on a busy machine."""

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tools_dev.hostile.attacks", "tools_dev.hostile.honest"])


@dataclass
class Outcome:
    """What one phase brought to light.

    Args:
        name: of the phase.
        delivered: messages that the system took.
        experiences: of the honest clients.
        targets: the processes.
        turns: name of the process that was attacked, when that began and ended.
        faults: what may never be.
        late: requests that took too long.
    """

    name: str
    delivered: int
    experiences: list[Experience]
    targets: list[Target]
    turns: dict[str, tuple[float, float]]
    faults: list[str]
    late: list[str]

    def table(self) -> str:
        lines = [f"{self.name}: {self.delivered:,} messages delivered by attackers"]
        for seen in self.experiences:
            lines.append(f"  honest client of {seen.name}: {seen.checked:,} checked, {seen.wrong} wrong")
            for turn in CLIENTS.get(seen.name, (seen.name,)):
                count, half, most = seen.percentiles(*self.turns[turn])
                took = f"p50 {1000 * half:.1f} ms, p99 {1000 * most:.1f} ms"
                lines.append(f"    while {turn} was attacked: {count:,} requests, {took}")
        for target in self.targets:
            lines.append(
                f"  {target.name}: {target.start >> 20} MiB at first, {target.peak >> 20} MiB at most, "
                f"log {target.log.stat().st_size:,} bytes"
            )
        return "\n".join(lines + [f"  FAULT: {fault}" for fault in self.faults + self.late])


def phase(
    secured: bool,
    *,
    messages: int,
    seconds: float,
    seed: int,
    attackers: int,
    only: Sequence[str] = (),
    least: float = 0.0,
) -> Outcome:
    """Attack for so long, or until so many messages were delivered.

    Args:
        secured: the processes have a key.
        messages, seconds: what ends it; each process under attack has its share of both.
        seed: of the attackers.
        attackers: processes, beside one that attacks the metrics endpoint.
        only: names of attacks; default all.
        least: seconds that it takes at least, however many messages were delivered; shared as `seconds`.
    """
    name = "with a key" if secured else "without a key"
    with tempfile.TemporaryDirectory(prefix="satrap-hostile-") as place:
        folder = Path(place)
        key = folder / "key" if secured else None
        create_key(folder / "wrong")
        keys = [folder / "key", folder / "wrong", None] if secured else [None]
        results: Any = CONTEXT.Manager().Queue()
        delivered = CONTEXT.Value("q", 0)
        with targets(folder, key=key) as under:
            warm, end = CONTEXT.Semaphore(0), CONTEXT.Event()
            honest = [
                CONTEXT.Process(target=live, args=(name, arguments, key, warm, end, results))
                for name, arguments in _honest(under, folder).items()
            ]
            for process in honest:
                process.start()
            for _ in honest:
                assert warm.acquire(timeout=START_SECONDS), "an honest client did not get to work"
            for target in under.values():
                target.warm()
            turns: dict[str, tuple[float, float]] = {}
            for number, target in enumerate(under.values(), 1):
                crowd = _crowd(target, keys, seed, attackers, delivered, only)
                begun = time.monotonic()
                enough, share = messages * number / len(under), 1 / len(under)
                while (took := time.monotonic() - begun) < seconds * share and (
                    took < least * share or delivered.value < enough
                ):
                    time.sleep(0.5)
                    for each in under.values():
                        each.look()
                turns[target.name] = begun, time.monotonic()
                for process in crowd:
                    process.kill()
                    process.join()
            end.set()
            experiences = _gather(honest, results)
            faults = [f"{t.name} {fault}" for t in under.values() for fault in t.faults()]
            faults += [fault for seen in experiences for fault in _complaints(seen)]
            if missing := set(_honest(under, folder)) - {seen.name for seen in experiences}:
                faults.append(f"the honest clients of {', '.join(sorted(missing))} did not come back")
            late = [fault for seen in experiences for fault in _late(seen, turns)]
            outcome = Outcome(name, delivered.value, experiences, list(under.values()), turns, faults, late)
            print(outcome.table(), flush=True)
            return outcome


def _honest(under: dict[str, Target], folder: Path) -> dict[str, tuple[Any, ...]]:
    behind = under["behind"].address
    return {
        "shard": (under["shard"].address,),
        "journal": (under["journal"].address,),
        "embedding worker": (under["embedding worker"].address, behind),
        "loader": (under["loader"].address, folder / "recipe" / "clicks.yaml"),
        "metrics endpoint": (under["shard"].metrics,),
    }


def _crowd(
    target: Target,
    keys: Sequence[Path | None],
    seed: int,
    attackers: int,
    delivered: Any,
    only: Sequence[str],
) -> list[Any]:
    crowd = []
    for number in range(attackers):
        own = f"{seed} {target.name} {number}"
        arguments = (target.role, target.address, keys[number % len(keys)], own, delivered, only)
        crowd.append(CONTEXT.Process(target=attack, args=arguments, daemon=True))
    endpoint = (target.metrics, f"{seed} {target.name} endpoint", delivered)
    crowd.append(CONTEXT.Process(target=attack_endpoint, args=endpoint, daemon=True))
    for process in crowd:
        process.start()
    return crowd


def _gather(honest: Sequence[Any], results: Any) -> list[Experience]:
    found: list[Experience] = []
    limit = time.monotonic() + 90
    while len(found) < len(honest) and time.monotonic() < limit:
        try:
            found.append(results.get(timeout=0.5))
        except queue.Empty:
            if not any(process.is_alive() for process in honest):
                break
    for process in honest:
        process.kill()
        process.join()
    return found


def _complaints(seen: Experience) -> list[str]:
    found = []
    if seen.error:
        found.append(f"the honest client of {seen.name} ended: {seen.error}")
    if seen.wrong or not seen.checked:
        found.append(f"the honest client of {seen.name} saw {seen.wrong} wrong of {seen.checked}")
    return found


def _late(seen: Experience, turns: dict[str, tuple[float, float]]) -> list[str]:
    found = []
    for turn in CLIENTS.get(seen.name, (seen.name,)):
        _, _, most = seen.percentiles(*turns[turn])
        if most > P99:
            found.append(
                f"the honest client of {seen.name} waited {1000 * most:.0f} ms (p99), {turn} attacked"
            )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Attack satrap's processes and see what becomes of them.")
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--attackers", type=int, default=3, help="processes, beside that of the endpoint")
    parser.add_argument("--only", action="append", default=[], help="name of an attack; may be repeated")
    parser.add_argument(
        "--key", choices=["no", "yes"], default=None, help="default: first without, then with"
    )
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    phases = [secured for secured in (False, True) if given.key in (None, "yes" if secured else "no")]
    outcomes = [
        phase(
            secured,
            messages=given.messages // len(phases),
            seconds=60 * given.minutes / len(phases),
            seed=seed,
            attackers=given.attackers,
            only=given.only,
        )
        for secured in phases
    ]
    total, faults = sum(o.delivered for o in outcomes), sum(len(o.faults + o.late) for o in outcomes)
    print(f"{total:,} messages delivered, {faults} faults")
    return 1 if faults or total < given.messages else 0


if __name__ == "__main__":
    sys.exit(main())
