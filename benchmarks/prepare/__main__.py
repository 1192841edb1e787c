"""Prepare generated click logs: speed relative to a plain read, memory over size, and bytes after two kills.

Processor seconds are shown next to elapsed seconds, because other programs may run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv

from benchmarks.record import write

RESULTS = Path(__file__).parent / "results"
NUMBERS, CATEGORIES = [f"i{i}" for i in range(13)], [f"c{i}" for i in range(26)]
BLOCK = 64_000_000
"""Bytes of generated rows; the file repeats them."""


def main() -> None:
    """Run the benchmark; all files except its figures are removed at the end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=1.0, help="size of the text file, in 1e9 bytes")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--folder", help="where to write; needs twice the size and a little")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the folder is removed
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="satrap-prepare-") as folder:
        work = Path(folder)
        block = generated(options.seed)
        results["tenth"] = measured(work, block, options.gigabytes / 10, options.processes)
        results["whole"] = measured(work, block, options.gigabytes, options.processes)
        results["kills"] = killed(work, options.processes)
    print(json.dumps(results, indent=2))
    print(write(RESULTS, vars(options) | {"block_bytes": len(block)}, results))


def generated(seed: int) -> bytes:
    """Return rows of a label, 13 integers and 26 hexadecimal texts, about `BLOCK` bytes."""
    random = np.random.default_rng(seed)
    parts: list[bytes] = []
    while sum(map(len, parts)) < BLOCK:
        count = 20_000
        columns = [(random.random(count) < 0.25).astype(int).astype(str)]
        for _ in NUMBERS:
            numbers = (random.pareto(1.0, count) * 3).astype(np.int64).clip(0, 10**6).astype(str)
            columns.append(np.where(random.random(count) < 0.2, "", numbers))
        for i, _ in enumerate(CATEGORIES):
            ranks = random.zipf(1.2, count) % 10 ** (i % 7 + 1)
            texts = np.char.mod("%08x", (ranks * 2654435761 + i) & 0xFFFFFFFF)
            columns.append(np.where(random.random(count) < 0.05, "", texts))
        parts.append("".join("\t".join(row) + "\n" for row in zip(*columns, strict=True)).encode())
    return b"".join(parts)


def measured(work: Path, block: bytes, gigabytes: float, processes: int) -> dict[str, Any]:
    """Write a file and its recipe; time plain reads, and preparing it in one and in several processes."""
    size = 0
    with (work / "rows.tsv").open("wb") as file:
        while size < gigabytes * 1e9:
            size += file.write(block)
    features = [f"  {name}: {{numeric: true, transform: log1p}}" for name in NUMBERS]
    features += [f"  {name}: {{dim: 16}}" for name in CATEGORIES]
    (work / "raw.yaml").write_text(
        f"data: {{train: rows.tsv, columns: [label, {', '.join(NUMBERS + CATEGORIES)}]}}\n"
        "labels: [label]\nfeatures:\n" + "\n".join(features) + "\nmodel: {name: dlrm}\n"
    )
    results: dict[str, Any] = {"bytes": size, "plain_read": plain_read(work)}
    for count in dict.fromkeys((1, processes)):
        out = work / f"out-{count}"
        figures = watched(command(work, out, count))
        figures["prepared_bytes"] = sum(path.stat().st_size for path in out.glob("*/*.parquet"))
        results[f"{count} processes"] = figures
        results["digest"] = digest(out)
        shutil.rmtree(out)
    results["plain_read_again"] = plain_read(work)
    for figures in results.values():
        if isinstance(figures, dict):
            figures["mb_per_s"] = size / figures["seconds"] / 1e6
            figures["mb_per_cpu_s"] = size / figures["cpu_seconds"] / 1e6
    return results


def plain_read(work: Path) -> dict[str, Any]:
    """Read the file in a stream with pyarrow alone: numbers as float64, the others as text."""
    start, before = time.perf_counter(), time.process_time()
    types = {name: pa.float64() for name in ("label", *NUMBERS)}
    types |= {name: pa.string() for name in CATEGORIES}
    reader = pyarrow.csv.open_csv(
        work / "rows.tsv",
        pyarrow.csv.ReadOptions(column_names=list(types), use_threads=False),
        pyarrow.csv.ParseOptions(delimiter="\t"),
        pyarrow.csv.ConvertOptions(column_types=types),
    )
    rows = sum(batch.num_rows for batch in reader)
    return {
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - before,
        "rows": rows,
    }


def command(work: Path, out: Path, processes: int, *more: str) -> list[str]:
    """Return the command that prepares the file."""
    base = [sys.executable, "-m", "satrap.cli", "prepare", str(work / "raw.yaml")]
    return [*base, "--output", str(out), "--processes", str(processes), *more]


def watched(arguments: list[str]) -> dict[str, Any]:
    """Run a command to its end; return its time and the peak resident bytes of it and its largest child."""
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL)
    peaks: dict[int, int] = {}
    while process.poll() is None:
        for pid in (process.pid, *children(process.pid)):
            peaks[pid] = max(peaks.get(pid, 0), resident(pid))
        time.sleep(0.1)
    if process.returncode:
        raise SystemExit(f"{' '.join(arguments)} ended with code {process.returncode}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "seconds": time.perf_counter() - start,
        "cpu_seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "peak_bytes": peaks.pop(process.pid),
        "peak_bytes_of_a_child": max(peaks.values(), default=0),
    }


def children(pid: int) -> list[int]:
    """Return the child processes of a process."""
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def resident(pid: int) -> int:
    """Return the largest resident memory of a process so far, in bytes; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)


def killed(work: Path, processes: int) -> dict[str, Any]:
    """Kill the command after a third and after two thirds of its files, let it end, and compare the bytes."""
    whole, out = work / "whole", work / "out"
    again = command(work, out, processes, "--files", "12")
    subprocess.run(command(work, whole, processes, "--files", "12"), check=True, stdout=subprocess.DEVNULL)
    expected, count = digest(whole), len(list(whole.glob("*/*.parquet")))
    shutil.rmtree(whole)
    counts: list[int] = []
    for share in (1, 2):
        process = subprocess.Popen(again, stdout=subprocess.DEVNULL)
        while len(list(out.glob("*/*.parquet"))) < max(share, count * share // 3):
            if process.poll() is not None:
                raise SystemExit("the command ended before it could be killed: take more --gigabytes")
            time.sleep(0.01)
        process.kill()
        process.wait()
        counts.append(len(list(out.glob("*/*.parquet"))))
    subprocess.run(again, check=True, stdout=subprocess.DEVNULL)
    if digest(out) != expected:
        raise SystemExit("the bytes differ from an undisturbed run")
    return {"files": count, "files_when_killed": counts, "same_bytes": True, "digest": expected}


def digest(folder: Path) -> str:
    """Return a digest of names and contents of the prepared files and the recipe."""
    sha = hashlib.sha256()
    for path in [*sorted(folder.glob("*/*.parquet")), folder / "recipe.yaml"]:
        sha.update(str(path.relative_to(folder)).encode())
        with path.open("rb") as file:
            sha.update(hashlib.file_digest(file, "sha256").digest())
    return sha.hexdigest()


if __name__ == "__main__":
    main()
