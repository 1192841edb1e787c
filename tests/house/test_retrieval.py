"""The example of an index of item vectors: it runs, and its figure is the share of items that it finds."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "retrieval" / "nearest.py"
pytest.importorskip("usearch", reason="usearch is not installed")


def write(path: Path, vectors: np.ndarray) -> None:
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
    pq.write_table(pa.table({"id": np.arange(len(vectors)), "vector": column}), path)


def test_it_prints_the_recall_and_keeps_the_index(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    lengths = random.exponential(size=(500, 1))
    write(tmp_path / "items.parquet", (random.normal(size=(500, 8)) * lengths).astype(np.float32))
    write(tmp_path / "users.parquet", random.normal(size=(50, 8)).astype(np.float32))
    names = [str(tmp_path / name) for name in ("items.parquet", "users.parquet", "items.usearch")]
    done = subprocess.run(
        [sys.executable, SCRIPT, *names], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    found = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert found["items"].startswith("500 of width 8, ")
    share, _, rest = found["recall@10"].partition(" ")
    assert rest == "over 50 users"
    assert 0.8 < float(share) <= 1
    assert (tmp_path / "items.usearch").stat().st_size > 500 * 8 * 4


def test_the_recall_is_a_share_of_the_true_items() -> None:
    """An index of half of the items finds only the true ones among them."""
    example = runpy.run_path(str(SCRIPT))
    random = np.random.default_rng(1)
    items = random.normal(size=(300, 8)).astype(np.float32)
    users = random.normal(size=(40, 8)).astype(np.float32)
    true = np.argsort(-(users @ items.T), axis=1)[:, :10]
    half = example["built"](items[:150])
    assert example["recall"](half, items, users) == pytest.approx((true < 150).mean(), abs=0.02)
    assert sorted(example["best"](items, users, 10)[0]) == sorted(true[0])
