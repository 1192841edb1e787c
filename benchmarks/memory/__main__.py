"""Peak memory of reading and training against the length of the file. See README.md here."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from pyarrow import csv, parquet

import satrap
from benchmarks.record import write

RESULTS = Path(__file__).parent / "results"
USERS, ITEMS = 200_000, 50_000
"""Ids are drawn from fixed ranges: the tables reach the same size in both runs, only the file grows."""
CHUNK = 500_000
ALLOWED_GROWTH = 1.1
"""The long file may cost a tenth more than the short one: allocator noise, not growth."""


def schema() -> satrap.Schema:
    """Return the schema of the generated files."""
    return satrap.Schema(
        ["clicked"],
        {
            "user": satrap.Categorical(dim=16),
            "item": satrap.Categorical(dim=16),
            "price": satrap.Numeric(transform="log1p"),
        },
    )


def generate(path: Path, rows: int) -> None:
    """Write `rows` random samples, in chunks."""
    random = np.random.default_rng(1)
    writer: Any = None
    for start in range(0, rows, CHUNK):
        count = min(CHUNK, rows - start)
        chunk = pa.table(
            {
                "clicked": random.integers(0, 2, count).astype(np.int8),
                "user": random.integers(0, USERS, count),
                "item": random.integers(0, ITEMS, count),
                "price": random.random(count).astype(np.float32),
            }
        )
        if writer is None:
            kind = csv.CSVWriter if path.suffix == ".csv" else parquet.ParquetWriter
            writer = kind(path, chunk.schema)
        writer.write_table(chunk)
    writer.close()


def train(path: Path) -> dict[str, float]:
    """Train one epoch over a file; return this process's peak memory and speed."""
    described = schema()
    trainer = satrap.Trainer(
        satrap.models.DeepFM(described, hidden=[32]),
        described,
        embedding_optimizer=satrap.optim.RowWiseAdagrad(lr=0.05),
        dense_optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
    )
    start = time.perf_counter()
    result = trainer.fit(satrap.data.read(str(path), described, batch_size=4096))
    seconds = time.perf_counter() - start
    return {"samples": result.samples, "peak_mib": peak_mib(), "seconds": round(seconds, 1)}


def peak_mib() -> float:
    """Return the highest resident memory of this program so far, in MiB.

    `ru_maxrss` is unsuitable on Linux: a child starts with the peak of its parent.
    """
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    return round(kib / 1024, 1)


def in_fresh_process(path: Path) -> dict[str, float]:
    """Train on a file in a new process, so that peaks do not mix."""
    command = [sys.executable, "-m", "benchmarks.memory", "--train", str(path)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    measured: dict[str, float] = json.loads(output.splitlines()[-1])
    return measured


def main() -> None:
    """Generate, train on each length, print and record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__)
    parser.add_argument("--rows", type=int, nargs=2, default=[1_000_000, 20_000_000], help="the two lengths")
    parser.add_argument("--format", choices=["parquet", "csv"], default="parquet")
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        print(json.dumps(train(options.train)))
        return
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        for rows in options.rows:
            path = Path(folder) / f"rows.{options.format}"
            generate(path, rows)
            runs.append({"file_mib": round(path.stat().st_size / 2**20, 1), **in_fresh_process(path)})
            print(runs[-1], flush=True)
    growth = round(runs[1]["peak_mib"] / runs[0]["peak_mib"], 3)
    parameters = {"rows": options.rows, "format": options.format}
    path = write(RESULTS, parameters, {"runs": runs, "peak_growth": growth})
    print(f"peak memory, long file / short file: {growth:.3f}   raw figures: {path}")
    sys.exit(growth > ALLOWED_GROWTH)


if __name__ == "__main__":
    main()
