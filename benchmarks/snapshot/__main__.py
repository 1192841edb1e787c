"""Speed of writing and reading a snapshot, and the pause of training for it.

`python -m benchmarks.snapshot [--rows 100000 1000000 4000000] [--delta-rows 1000000] [--dim 16]`

For each table size: MB/s of a save and of a load (verified), compared with the disk's sequential write of the
same number of bytes, including fsync: through the system's page cache in blocks of 1 MiB, as `dd conv=fsync`
does, and past it in blocks of 8 MiB, as `dd oflag=direct` does, if the disk supports it. A disk's speed may
vary manyfold, so it is measured immediately before and after each save. The ratio of a round is the mean of
these two times over the save's time; the result is the median of the rounds. The pause is the time from
requesting a cut until the next lookup can be issued; next to it is the longest step of 10,000 rows (lookup
and update) while the cut is being written. Then the bytes of a delta after a part of `--delta-rows` was
touched, compared with the full snapshot.
"""

from __future__ import annotations

import argparse
import math
import mmap
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import satrap
from benchmarks.record import write
from satrap.checkpoint import Checkpoint, Series, read_checkpoint, write_checkpoint
from satrap.exchange import LocalExchange, LookupRequest
from satrap.store import Shard

ROUNDS = 9
BLOCK, DIRECT_BLOCK = 1 << 20, 1 << 23


def filled(rows: int, dim: int) -> LocalExchange:
    table = satrap.Table("user", dim=dim, optimizer=satrap.optim.Adagrad(lr=0.01))
    exchange = LocalExchange(Shard([table], seed=1))
    random = np.random.default_rng(0)
    for start in range(0, rows, 100_000):
        count = min(100_000, rows - start)
        ids = random.integers(0, 2**64, count, np.uint64)
        exchange.shard.lookup("user", ids)
    return exchange


def timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def sequential(path: Path, size: int) -> None:
    block = memoryview(np.random.default_rng(0).bytes(BLOCK))
    with open(path, "wb", buffering=0) as file:
        for start in range(0, size, BLOCK):
            file.write(block[: size - start])
        os.fsync(file.fileno())


def direct(path: Path, size: int) -> None:
    """Write past the page cache, whole blocks only.

    Raises:
        OSError: the file system does not support it.
    """
    with mmap.mmap(-1, DIRECT_BLOCK) as block:  # aligned, as such writes must be
        block.write(np.random.default_rng(0).bytes(DIRECT_BLOCK))
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_DIRECT)
        try:
            for _ in range(0, size, DIRECT_BLOCK):
                os.write(file, block)
            os.fsync(file)
        finally:
            os.close(file)


def state(exchange: LocalExchange) -> Checkpoint:
    return Checkpoint({"steps": 1}, {"w": torch.zeros(8)}, {}, exchange.rows.cut(still=True))


def load(place: str, exchange: LocalExchange) -> None:
    for table, chunk in read_checkpoint(place).chunks:
        exchange.rows.load(table, chunk)


def pauses(exchange: LocalExchange, place: str) -> dict[str, float]:
    """Milliseconds: of the cut, and of the lookups and updates of 10,000 rows before and during the save."""
    ids = next(exchange.shard.export("user")).ids[:10_000].copy()
    request = LookupRequest(0, np.sort(ids), np.array([0, len(ids)], np.int64))
    gradient = np.full((len(ids), exchange.groups[0].dim), 1e-3, np.float32)

    def step() -> float:
        def both() -> None:
            lookup = exchange.lookup([request], create=True)
            lookup.result()
            exchange.apply(lookup, [gradient], lr_scale=1.0)
            exchange.flush()

        return 1e3 * timed(both)

    before = [step() for _ in range(50)]
    start = time.perf_counter()
    cut = state(exchange)
    pause = 1e3 * (time.perf_counter() - start)
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write_checkpoint, place, cut)
        during = [step()]
        while not writing.done():
            during.append(step())
        writing.result()
    return {
        "cut_ms": pause,
        "step_ms": statistics.median(before),
        "longest_step_ms": max(before),
        "step_during_save_ms": statistics.median(during),
        "longest_step_during_save_ms": max(during),
    }


def measure(rows: int, dim: int, folder: Path) -> dict[str, Any]:
    exchange, place, raw = filled(rows, dim), str(folder / "snapshot"), folder / "raw"
    size = write_checkpoint(place, state(exchange)).bytes
    whole = math.ceil(size / DIRECT_BLOCK) * DIRECT_BLOCK
    times: dict[str, list[float]] = {"disk": [], "direct": [], "save": [], "load": []}

    def disk() -> float:
        taken = timed(lambda: sequential(raw, size))
        raw.unlink()
        return taken

    def past_cache() -> float:
        try:
            taken = timed(lambda: direct(raw, whole)) * size / whole
            raw.unlink()
        except (OSError, AttributeError):
            return math.nan
        return taken

    for number in range(ROUNDS):
        shutil.rmtree(place)
        before = disk(), past_cache()
        times["save"].append(timed(lambda: write_checkpoint(place, state(exchange))))
        after = past_cache(), disk()
        times["disk"].append((before[0] + after[1]) / 2)
        times["direct"].append((before[1] + after[0]) / 2)
        if number % 2 == 0:
            empty = filled(0, dim)
            times["load"].append(timed(partial(load, place, empty)))
            empty.close()
    figures: dict[str, Any] = {"rows": rows, "dim": dim, "bytes": size}
    figures |= {f"{name}_mb_s": size / 1e6 / statistics.median(taken) for name, taken in times.items()}
    for name in ("disk", "direct"):
        ratios = sorted(disk / save for disk, save in zip(times[name], times["save"], strict=True))
        figures[f"save_to_{name}"] = statistics.median(ratios)
        figures[f"save_to_{name}_rounds"] = ratios
    figures |= pauses(exchange, place)
    exchange.close()
    shutil.rmtree(place)
    return figures


def deltas(rows: int, dim: int, folder: Path) -> list[dict[str, float]]:
    """Size and time of a delta after some rows were touched, and of the full snapshot."""
    exchange, series = filled(rows, dim), Series(str(folder / "series"), keep=9)
    shard, random, figures = exchange.shard, np.random.default_rng(1), []
    ids = np.concatenate([chunk.ids for chunk in shard.export("user")])

    def save(step: int) -> tuple[int, float]:
        start = time.perf_counter()
        taken = shard.changes.take(full=not step)
        state = Checkpoint(
            {"steps": step},
            {"w": torch.zeros(8)},
            {},
            ((chunk.table, chunk) for chunk in taken.chunks),
            deleted=None if taken.full else taken.deleted,
        )
        return series.write(step, state).bytes, 1e3 * (time.perf_counter() - start)

    full, full_ms = save(0)
    for step, share in enumerate((0.001, 0.01, 0.1, 0.5), 1):
        touched = random.choice(ids, int(share * rows), replace=False)
        shard.lookup("user", touched)
        shard.update("user", touched, np.full((len(touched), dim), 1e-3, np.float32))
        size, taken_ms = save(step)
        figures.append({"rows": rows, "touched": len(touched), "bytes": size, "full_bytes": full})
        figures[-1] |= {"bytes_per_touched_row": size / len(touched), "ms": taken_ms, "full_ms": full_ms}
    exchange.close()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000, 4_000_000])
    parser.add_argument("--delta-rows", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--folder", default=None, help="on the disk to measure; default the temporary folder")
    options = parser.parse_args()
    results = []
    for rows in options.rows:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            results.append(measure(rows, options.dim, Path(folder)))
        print({k: np.round(value, 2).tolist() for k, value in results[-1].items()}, flush=True)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        changes = deltas(options.delta_rows, options.dim, Path(folder))
    for one in changes:
        print({key: round(value, 2) for key, value in one.items()}, flush=True)
    parameters = {
        "rows": options.rows,
        "delta_rows": options.delta_rows,
        "dim": options.dim,
        "rounds": ROUNDS,
    }
    print(write(Path(__file__).parent / "results", parameters, {"tables": results, "deltas": changes}))


if __name__ == "__main__":
    main()
