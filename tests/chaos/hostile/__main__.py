"""Real processes under attack, beside honest clients that check every row.

`python -m tests.chaos.hostile --messages 10_000_000 --minutes 20` attacks a shard, one with a journal, a
loader, an embedding worker and a metrics endpoint: first without a key, then with one, by attackers without
it, with a wrong one, and with the right one. It ends with exit code 1 if an honest client saw a wrong row or
waited too long, or if a process ended, grew or talked too much.
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

import numpy as np

from satrap.rpc import create_key
from tests.chaos.hostile.attacks import attack, attack_endpoint
from tests.chaos.hostile.honest import Experience, live
from tests.chaos.hostile.targets import Target, targets

P99 = 0.25
"""Seconds that 99 of 100 requests of an honest client may take at most."""

START_SECONDS = 300.0
"""In which the honest clients get to work, also on a busy machine."""

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.chaos.hostile.attacks", "tests.chaos.hostile.honest"])


@dataclass
class Outcome:
    """What one phase brought to light."""

    name: str
    delivered: int
    experiences: list[Experience]
    targets: list[Target]
    faults: list[str]
    late: list[str]

    def table(self) -> str:
        lines = [f"{self.name}: {self.delivered:,} messages delivered by attackers"]
        for seen in self.experiences:
            times = np.array(seen.seconds or [np.nan]) * 1000
            half, most = np.percentile(times, [50, 99])
            lines.append(
                f"  honest client of {seen.name}: {seen.checked:,} checked, {seen.wrong} wrong, "
                f"{len(times):,} requests, p50 {half:.1f} ms, p99 {most:.1f} ms"
            )
        for target in self.targets:
            lines.append(
                f"  {target.name}: {target.start >> 20} MiB at first, {target.peak >> 20} MiB at most, "
                f"log {target.log.stat().st_size:,} bytes"
            )
        return "\n".join(lines + [f"  FAULT: {fault}" for fault in self.faults + self.late])


def phase(
    secured: bool, *, messages: int, seconds: float, seed: int, attackers: int, only: Sequence[str] = ()
) -> Outcome:
    """Attack for so long, or until so many messages were delivered.

    Args:
        secured: the processes have a key.
        messages, seconds: what ends it.
        seed: of the attackers.
        attackers: processes per process under attack.
        only: names of attacks; default all.
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
            crowd = _crowd(under, keys, seed, attackers, delivered, only)
            begun = time.monotonic()
            while time.monotonic() < begun + seconds and delivered.value < messages:
                time.sleep(0.5)
                for target in under.values():
                    target.look()
            for process in crowd:
                process.kill()
                process.join()
            end.set()
            experiences = _gather(honest, results)
            faults = [f"{t.name} {fault}" for t in under.values() for fault in t.faults()]
            faults += [fault for seen in experiences for fault in _complaints(seen)]
            if missing := set(_honest(under, folder)) - {seen.name for seen in experiences}:
                faults.append(f"the honest clients of {', '.join(sorted(missing))} did not come back")
            late = [fault for seen in experiences for fault in _late(seen)]
            outcome = Outcome(name, delivered.value, experiences, list(under.values()), faults, late)
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
    under: dict[str, Target],
    keys: Sequence[Path | None],
    seed: int,
    attackers: int,
    delivered: Any,
    only: Sequence[str],
) -> list[Any]:
    crowd = []
    for target in under.values():
        for number in range(attackers):
            own = f"{seed} {target.name} {number}"
            arguments = (target.role, target.address, keys[number % len(keys)], own, delivered, only)
            crowd.append(CONTEXT.Process(target=attack, args=arguments, daemon=True))
    endpoint = (under["shard"].metrics, f"{seed} endpoint", delivered)
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


def _late(seen: Experience) -> list[str]:
    late = float(np.percentile(seen.seconds, 99)) if seen.seconds else 0.0
    return [f"the honest client of {seen.name} waited {1000 * late:.0f} ms (p99)"] if late > P99 else []


def main() -> int:
    parser = argparse.ArgumentParser(description="Attack satrap's processes and see what becomes of them.")
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--attackers", type=int, default=3, help="per process under attack")
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
